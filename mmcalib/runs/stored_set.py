"""CIFAR-10-C, ImageNet-C and their like in place of a config's test data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path

import numpy as np
from mmengine.registry import DATASETS

from mmcalib.datasets.cifar_c import LABELS
from mmcalib.runs.corruption_place import CorruptionPlace, corruption_places


class StoredSet:
    """Corrupted images of the same classes that lie in a folder.

    What is stored takes the place of an image that was loaded and resized, as the sets were made.

    Args:
        clean: Config of the clean test data, which may be in a wrapper.
        places: See :func:`~mmcalib.runs.corruption_place.corruption_places`.
        root: The folder of CIFAR-10-C or CIFAR-100-C, or of ImageNet-C.
        scope: The config's ``default_scope``.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: If the clean data are several sets.
    """

    def __init__(
        self, clean: Mapping, places: Sequence[CorruptionPlace], root: str, scope: str | None
    ) -> None:
        if not Path(root).is_dir():
            raise FileNotFoundError(f'--stored {root}: there is no such folder')
        if len(places) != 1:
            raise ValueError(f'--stored replaces one data set, and the config has {len(places)}')
        self.root, self.scope, self.place, self.clean = root, scope, places[0], clean
        node = clean
        while 'dataset' in node:
            node = node['dataset']
        self.metainfo = node.get('metainfo')
        self.pipeline = list(node.get('pipeline') or ())
        self.of_arrays = Path(root, LABELS).is_file()
        built = _build(clean, scope)
        self.labels = _labels(built)
        # By label, where a data set does not number its folders as they are sorted.
        self.class_folders = getattr(built, 'class_folders', None)
        numbers = getattr(built, 'folder_to_idx', None)  # mmpretrain's
        if numbers and self.class_folders is None:
            self.class_folders = sorted(numbers, key=numbers.get)

    def dataset(self, corruption: str, severity: int) -> dict:
        """Return the config of one corruption at one severity, packed as the clean data are."""
        rest = self.pipeline[self.place.index :]
        common = dict(data_root=self.root, corruption=corruption, severity=severity)
        if self.metainfo:
            common['metainfo'] = deepcopy(self.metainfo)
        if self.of_arrays:
            file = Path(self.root, f'{corruption}.npy')
            if not file.is_file():
                raise FileNotFoundError(f'--stored: there is no {file}')
            order = self.place.channel_order
            return dict(type='CIFARC', **common, channel_order=order, pipeline=deepcopy(rest))
        if not Path(self.root, corruption, str(severity)).is_dir():
            raise FileNotFoundError(
                f'--stored {self.root} has neither {LABELS}, as CIFAR-10-C, nor a folder '
                f'{corruption}/{severity}, as ImageNet-C'
            )
        if self.place.loader is None:
            raise ValueError('--stored in folders needs a test pipeline that loads files')
        pipeline = deepcopy([*self.pipeline[: self.place.loader + 1], *rest])
        return dict(type='ImageNetC', **common, class_folders=self.class_folders, pipeline=pipeline)

    def check(self, corruption: str, severity: int) -> None:
        """Raise a ValueError if images of another size, or other classes, are stored."""
        config = self.dataset(corruption, severity)
        found = _labels(_build(config, self.scope))
        if not np.array_equal(found, self.labels):
            raise ValueError(
                f'--stored {self.root} is another data set: it has {found.sum():,} images in '
                f'{len(found)} classes, the clean test data {self.labels.sum():,} in '
                f'{len(self.labels)}'
                + (', of other sizes' if len(found) == len(self.labels) else '')
            )
        (place,) = corruption_places(config, self.scope)
        if place.loaded_shape != self.place.shape:
            raise ValueError(
                f'--stored {self.root} has images of {_size(place.loaded_shape)}, and clean ones '
                f'are {_size(self.place.shape)} where they would be corrupted'
            )


def _build(config: Mapping, scope: str | None):
    with DATASETS.switch_scope_and_registry(scope) as registry:
        dataset = registry.build(deepcopy(config))
    if hasattr(dataset, 'full_init'):
        dataset.full_init()
    return dataset


def _labels(dataset) -> np.ndarray:
    """Return how many images each class has."""
    infos = (dataset.get_data_info(index) for index in range(len(dataset)))
    labels = [info.get('gt_label') for info in infos]
    if None in labels:
        raise ValueError('--stored is for classification: its sets have no masks')
    return np.bincount(labels)


def _size(shape: Sequence[int]) -> str:
    return f'{shape[0]}×{shape[1]} pixels'
