"""Corrupted data sets: by a transform at its place in the pipeline, or stored ones, by their files.

CIFAR-10-C and ImageNet-C are stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from mmengine.registry import DATASETS
from PIL import Image
from torch.utils.data import Dataset

from mmcalib.errors import UserError
from mmcalib.openmmlab.datasets.stored_corruptions import LABELS
from mmcalib.openmmlab.transforms.corrupt import check_image
from mmcalib.runs.config_tree import type_name, walk
from mmcalib.tensors import unchanged_randomness

# Images are corrupted before these transforms, and before those that pack.
LATER_TRANSFORMS = ('Pad', 'Normalize', 'ToTensor', 'TestTimeAug')


@dataclass(frozen=True)
class Place:
    """Place where the images of a data set are corrupted: behind resizing, before padding, packing.

    Attributes:
        index: Index of the transform that the corruption comes before.
        loader: Index of the transform that loads the image; None if the data set itself has it.
        channel_order: ``'bgr'`` of loaded files, ``'rgb'`` of mmpretrain's arrays, as they are at
            this place.
        shape: ``(H, W)`` of the first image at this place.
        value_range: Values of black and white; None for 8 bits.
    """

    index: int
    loader: int | None
    channel_order: str
    shape: tuple[int, int]
    value_range: tuple[float, float] | None


def find_places(dataset: Mapping, scope: str | None, before: str | None = None) -> list[Place]:
    """Return the place in each data set of a config, wrappers aside.

    Args:
        dataset: Config of the data set, or of a wrapper such as ``ConcatDataset``.
        scope: Scope of the registry, the config's ``default_scope``.
        before: Name of the transform before which images are corrupted; None to find it.

    Raises:
        UserError: If there is no such transform.
        ValueError: For images that have neither 8 bits nor a ``value_range`` in the metainfo.
    """
    with unchanged_randomness():
        return [find_place(config, scope, before) for config in reading_datasets(dataset)]


def find_place(config: Mapping, scope: str | None, before: str | None) -> Place:
    """Return the place in a data set that reads samples itself, see :func:`find_places`."""
    pipeline = list(config.get('pipeline') or ())
    names = [type_name(transform['type']).split('/')[-1] for transform in pipeline]
    if before and before not in names:
        raise UserError(f'--corrupt-before {before}: name one of {", ".join(names)}')
    index = 0
    while index < len(names) and not is_later(names[index], before):
        index += 1
    loader = None
    reverses_channels = False
    for position, name in enumerate(names[:index]):
        if name.startswith('LoadImage') and loader is None:
            loader = position
        transform = pipeline[position]
        if transform.get('to_rgb') or transform.get('to_bgr'):
            reverses_channels = not reverses_channels
    # Loaded files are BGR and arrays RGB, unless a transform reverses their channels.
    is_bgr = (loader is not None) != reverses_channels
    built = build_dataset({**config, 'pipeline': pipeline[:index]}, scope)
    image = built[0].get('img')
    value_range = (getattr(built, 'metainfo', None) or {}).get('value_range')
    check_image(image, value_range)
    return Place(
        index=index,
        loader=loader,
        channel_order='bgr' if is_bgr else 'rgb',
        shape=image.shape[:2],
        value_range=None if image.dtype == 'uint8' else value_range,
    )


def is_later(name: str, before: str | None) -> bool:
    """Return whether a transform comes after the corruption."""
    if before:
        return name == before
    return name in LATER_TRANSFORMS or name.startswith('Pack')


def with_corruption(
    dataset: Mapping, places: Sequence[Place], corruption: str, severity: int, seed: int = 0
) -> dict:
    """Return the config of a data set with ``Corrupt`` at its places."""
    changed = deepcopy(dataset)
    # Two parts may be the same object, so each pipeline is made of the unchanged one.
    originals = reading_datasets(dataset)
    for original, part, place in zip(originals, reading_datasets(changed), places, strict=True):
        transform = dict(
            type='Corrupt',
            corruption=corruption,
            severity=severity,
            seed=seed,
            channel_order=place.channel_order,
        )
        if place.value_range is not None:
            transform['value_range'] = place.value_range
        pipeline = list(original.get('pipeline') or ())
        part['pipeline'] = [*pipeline[: place.index], transform, *pipeline[place.index :]]
    return changed


def reading_datasets(dataset: Mapping) -> Iterator[dict]:
    """Yield the configs of the data sets in a config that read samples themselves."""
    for path, part in walk(dataset):
        is_wrapper = 'type' not in part or 'dataset' in part or 'datasets' in part
        if not is_wrapper and 'pipeline' not in path.split('.'):
            yield part


def build_dataset(config: Mapping, scope: str | None) -> Dataset:
    """Return the data set of a config, with its samples listed."""
    with DATASETS.switch_scope_and_registry(scope) as registry:
        dataset = registry.build(deepcopy(config))
    if hasattr(dataset, 'full_init'):
        dataset.full_init()
    return dataset


def stored_datasets(
    clean: Mapping,
    places: Sequence[Place],
    scope: str | None,
    root: str,
    corruptions: Iterable[tuple[str, int]],
) -> Iterator[dict]:
    """Yield configs of corruptions of CIFAR-10-C or ImageNet-C in place of the clean data.

    A stored image takes the place of one that was loaded and resized, as the sets were made.

    Args:
        clean: Config of the clean data, which may be in a wrapper.
        places: Places of the clean data, see
            :func:`find_places`.
        scope: Scope of the registry, the config's ``default_scope``.
        root: Folder with the stored set.
        corruptions: Names and severities of the corruptions.

    Raises:
        UserError: If the set is not there, or its images are not those of the clean data, of which
            wrong numbers would come.
    """
    if len(places) != 1:
        raise UserError(f'--stored replaces one data set, but the config has {len(places)}')
    (place,) = places
    (config,) = reading_datasets(clean)
    has_arrays = Path(root, LABELS).is_file()
    takes_files = place.loader is not None and place.channel_order == 'bgr'
    if place.value_range or not (has_arrays or takes_files):
        raise UserError(
            f'--stored {root} has 8-bit files in BGR, but the test pipeline has other images'
        )
    clean_dataset = build_dataset(config, scope)
    clean_labels = read_labels(clean_dataset)
    pipeline = list(config.get('pipeline') or ())
    if has_arrays:
        loading = []
        common = dict(type='CIFARC', channel_order=place.channel_order)
    else:
        loading = pipeline[: place.loader + 1]
        common = dict(type='ImageNetC', class_folders=class_folders(clean_dataset))
    if config.get('metainfo'):
        common['metainfo'] = config['metainfo']
    for name, severity in corruptions:
        if not has_arrays and not Path(root, name, str(severity)).is_dir():
            raise UserError(
                f'--stored {root}, {name} {severity}: there is neither {LABELS}, as CIFAR-10-C, '
                f'nor {name}/{severity}/, as ImageNet-C'
            )
        stored = dict(**common, data_root=root, corruption=name, severity=severity, pipeline=[])
        argument = f'--stored {root}, {name} {severity}'
        check_stored_set(argument, build_dataset(stored, scope), clean_labels, place)
        stored['pipeline'] = [*loading, *pipeline[place.index :]]
        changed = deepcopy(clean)
        (part,) = reading_datasets(changed)
        part.clear()
        part.update(stored)
        yield changed


def check_stored_set(
    argument: str, dataset: Dataset, clean_labels: Sequence[int], place: Place
) -> None:
    """Refuse a stored set of other images than the clean data: its metrics would be wrong."""
    labels = read_labels(dataset)
    if Counter(labels) != Counter(clean_labels):
        raise UserError(
            f'{argument} is from another data set: it has {describe_labels(labels)}, the clean '
            f'data {describe_labels(clean_labels)}, or classes of other sizes'
        )
    first = dataset.get_data_info(0)
    if 'img' in first:
        shape = first['img'].shape[:2]
    else:
        with Image.open(first['img_path']) as image:  # It reads the header alone.
            shape = image.size[::-1]
    if shape != place.shape:
        stored_size = '×'.join(map(str, shape))
        clean_size = '×'.join(map(str, place.shape))
        raise UserError(
            f'{argument} has images of {stored_size} pixels, clean ones are {clean_size}'
        )


def read_labels(dataset: Dataset) -> list[int]:
    """Return the label of each image."""
    labels = [dataset.get_data_info(index).get('gt_label') for index in range(len(dataset))]
    if None in labels:
        raise UserError('--stored is for classification: its sets have no masks')
    return labels


def describe_labels(labels: Sequence[int]) -> str:
    """Return the numbers of images and classes in words."""
    return f'{len(labels):,} images in {len(set(labels))} classes'


def class_folders(dataset: Dataset) -> list[str] | None:
    """Return the classes' folders by label; None for ImageNet, whose order is alphabetical."""
    if hasattr(dataset, 'class_folders'):
        return dataset.class_folders
    labels_by_folder = getattr(dataset, 'folder_to_idx', None)  # It is empty with an ann_file.
    if labels_by_folder:
        return sorted(labels_by_folder, key=labels_by_folder.get)
    if type(dataset).__name__ == 'ImageNet':
        return None
    raise UserError(
        '--stored: which folder is which class is not known: put the clean images of each class '
        'into a folder of its name, without an ann_file'
    )
