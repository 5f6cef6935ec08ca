"""Stored sets of corrupted images, CIFAR-10-C and ImageNet-C, in place of the clean data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path

from PIL import Image
from torch.utils.data import Dataset

from mmcalib.commands.robustness.corruption_places import (
    Place,
    build_dataset,
    reading_datasets,
)
from mmcalib.errors import UserError
from mmcalib.openmmlab.datasets.cifar_c import LABELS


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
            :func:`~mmcalib.commands.robustness.corruption_places.find_places`.
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
