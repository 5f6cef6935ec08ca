"""The data sets of a config with the images of a corruption: made here, or stored ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from mmengine.registry import DATASETS
from PIL import Image

from mmcalib.errors import UserError
from mmcalib.openmmlab.datasets.cifar_c import LABELS
from mmcalib.openmmlab.transforms.corrupt import check_image
from mmcalib.runs.config_tree import type_name, walk
from mmcalib.tensors import unchanged_randomness

BEHIND = ('Pad', 'Normalize', 'ToTensor', 'TestTimeAug')


@dataclass(frozen=True)
class Place:
    """Where the images of a data set are corrupted: behind resizing, before padding and packing.

    Attributes:
        index: Of the transform that the corruption comes before.
        loader: Index of the transform that loads the image; None where the data set gives it.
        channel_order: Of the image there: files are loaded as BGR, mmpretrain's arrays are RGB.
        shape: ``(H, W)`` of the first image there.
        value_range: The values for black and white; None for 8 bits.
    """

    index: int
    loader: int | None
    channel_order: str
    shape: tuple[int, int]
    value_range: tuple[float, float] | None


def places_in(dataset: Mapping, scope: str | None, before: str | None = None) -> list[Place]:
    """Return the place in each data set of a config, wrappers aside.

    Args:
        dataset: Config of the data set, or of a wrapper such as ``ConcatDataset``.
        scope: The config's ``default_scope``.
        before: Name of the transform before which images are corrupted; None to find it.

    Raises:
        UserError: If there is no such transform.
        ValueError: For images that have neither 8 bits nor a ``value_range`` in the metainfo.
    """
    places = []
    with unchanged_randomness():
        for node in _leaves(dataset):
            steps = list(node.get('pipeline') or ())
            names = [type_name(step['type']).split('/')[-1] for step in steps]
            if before and before not in names:
                raise UserError(f'--corrupt-before {before}: name one of {", ".join(names)}')
            last = [n == before if before else n in BEHIND or n[:4] == 'Pack' for n in names]
            index = [*last, True].index(True)
            loads = [name.startswith('LoadImage') for name in names[:index]]
            flips = sum(bool(s.get('to_rgb') or s.get('to_bgr')) for s in steps[:index])
            built = _build({**node, 'pipeline': steps[:index]}, scope)
            image, order = built[0].get('img'), ('rgb', 'bgr')[(any(loads) + flips) % 2]
            value_range = (getattr(built, 'metainfo', None) or {}).get('value_range')
            check_image(image, value_range)
            value_range = None if image.dtype == 'uint8' else value_range
            loader = loads.index(True) if any(loads) else None
            places.append(Place(index, loader, order, image.shape[:2], value_range))
    return places


def corrupted(
    dataset: Mapping, places: Sequence[Place], corruption: str, severity: int, seed: int = 0
) -> dict:
    """Return the config of a data set with ``Corrupt`` at its places."""
    changed = deepcopy(dataset)
    # Two parts may be the same object, which must not be corrupted twice.
    for node, new, place in zip(_leaves(dataset), _leaves(changed), places, strict=True):
        step = dict(type='Corrupt', corruption=corruption, severity=severity, seed=seed)
        step['channel_order'] = place.channel_order
        if place.value_range is not None:
            step['value_range'] = place.value_range
        steps = list(node.get('pipeline') or ())
        new['pipeline'] = [*steps[: place.index], step, *steps[place.index :]]
    return changed


def stored(
    clean: Mapping,
    places: Sequence[Place],
    scope: str | None,
    root: str,
    wanted: Iterable[tuple[str, int]],
) -> Iterator[dict]:
    """Yield configs of corruptions of CIFAR-10-C or ImageNet-C in place of the clean data.

    A stored image takes the place of one that was loaded and resized, as the sets were made.

    Args:
        clean: Config of the clean data, which may be in a wrapper.
        places: Of :func:`places_in`.
        scope: The config's ``default_scope``.
        root: The folder with the stored set.
        wanted: Names and severities of the corruptions.

    Raises:
        UserError: If the set is not there, or its images are not those of the clean data: wrong
            numbers would come of it.
    """
    if len(places) != 1:
        raise UserError(f'--stored replaces one data set, but the config has {len(places)}')
    ((node, place),) = zip(_leaves(clean), places, strict=True)
    of_arrays = Path(root, LABELS).is_file()
    files = place.loader is not None and place.channel_order == 'bgr'
    if place.value_range or not (of_arrays or files):
        raise UserError(
            f'--stored {root} has 8-bit files in BGR, but the test pipeline has other images'
        )
    ours = _build(node, scope)
    labels, steps = _labels(ours), list(node.get('pipeline') or ())
    common = {'metainfo': node['metainfo']} if node.get('metainfo') else {}
    if of_arrays:
        common |= dict(type='CIFARC', channel_order=place.channel_order)
    else:
        common |= dict(type='ImageNetC', class_folders=_class_folders(ours))
    loading = [] if of_arrays else steps[: place.loader + 1]
    for name, severity in wanted:
        said = f'--stored {root}, {name} {severity}'
        if not (of_arrays or Path(root, name, str(severity)).is_dir()):
            there = f'{LABELS}, as CIFAR-10-C, nor {name}/{severity}/, as ImageNet-C'
            raise UserError(f'{said}: there is neither {there}')
        config = dict(**common, data_root=root, corruption=name, severity=severity, pipeline=[])
        theirs = _build(config, scope)
        found = _labels(theirs)
        if Counter(found) != Counter(labels):
            raise UserError(
                f'{said} is from another data set: it has {_count(found)}, the clean data '
                f'{_count(labels)}, or classes of other sizes'
            )
        first = theirs.get_data_info(0)
        if 'img' in first:
            shape = first['img'].shape[:2]
        else:
            with Image.open(first['img_path']) as image:  # which reads its header alone
                shape = image.size[::-1]
        if shape != place.shape:
            sizes = ['×'.join(map(str, each)) for each in (shape, place.shape)]
            raise UserError(f'{said} has images of {sizes[0]} pixels, clean ones are {sizes[1]}')
        changed = deepcopy(clean)
        (new,) = _leaves(changed)
        new.clear()
        new.update({**config, 'pipeline': [*loading, *steps[place.index :]]})
        yield changed


def _leaves(dataset: Mapping) -> Iterator[dict]:
    """Yield the configs of those data sets that read samples themselves."""
    for path, node in walk(dataset):
        wraps = 'type' not in node or 'dataset' in node or 'datasets' in node
        if not wraps and 'pipeline' not in path.split('.'):
            yield node


def _build(config: Mapping, scope: str | None):
    with DATASETS.switch_scope_and_registry(scope) as registry:
        dataset = registry.build(deepcopy(config))
    if hasattr(dataset, 'full_init'):
        dataset.full_init()
    return dataset


def _labels(dataset) -> list[int]:
    labels = [dataset.get_data_info(index).get('gt_label') for index in range(len(dataset))]
    if None in labels:
        raise UserError('--stored is for classification: its sets have no masks')
    return labels


def _count(labels: Sequence[int]) -> str:
    return f'{len(labels):,} images in {len(set(labels))} classes'


def _class_folders(dataset) -> list[str] | None:
    """Return the classes' folders by label; None for ImageNet, whose order is alphabetical."""
    if hasattr(dataset, 'class_folders'):
        return dataset.class_folders
    numbers = getattr(dataset, 'folder_to_idx', None)  # of mmpretrain, empty with an ann_file
    if not numbers and type(dataset).__name__ != 'ImageNet':
        hint = 'put the clean images of each class into a folder of its name, without an ann_file'
        raise UserError(f'--stored: which folder is which class is not known: {hint}')
    return sorted(numbers, key=numbers.get) if numbers else None
