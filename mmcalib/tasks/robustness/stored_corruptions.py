"""CIFAR-10-C, ImageNet-C and their like in place of a config's test data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path

import numpy as np
from mmengine.registry import DATASETS
from PIL import Image

from mmcalib.datasets.cifar_c import LABELS
from mmcalib.tasks.robustness.corrupted_pipeline import CorruptionPlace


class StoredSet:
    """Corrupted images of the same classes that lie in a folder.

    A stored image takes the place of one that was loaded and resized, as the sets were made.

    Args:
        clean: Config of the clean test data, which may be in a wrapper.
        places: See :func:`~mmcalib.tasks.robustness.corrupted_pipeline.corruption_places`.
        root: The folder with CIFAR-10-C, CIFAR-100-C or ImageNet-C.
        scope: The config's ``default_scope``.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: If the clean data are several sets, not of 8 bits or not of classification, or
            it is not known which folder is which class.
    """

    def __init__(
        self, clean: Mapping, places: Sequence[CorruptionPlace], root: str, scope: str | None
    ) -> None:
        if not Path(root).is_dir():
            raise FileNotFoundError(f'--stored {root}: there is no such folder')
        if len(places) != 1:
            raise ValueError(f'--stored replaces one data set, but the config has {len(places)}')
        if places[0].value_range:
            raise ValueError(
                f'--stored {root} has 8-bit images, but those of the config have '
                f'value_range={places[0].value_range}'
            )
        self.root, self.scope, self.place = root, scope, places[0]
        node = clean
        while 'dataset' in node:
            node = node['dataset']
        self.metainfo, self.pipeline = node.get('metainfo'), list(node.get('pipeline') or ())
        self.of_arrays = Path(root, LABELS).is_file()
        built = _build(clean, scope)
        samples = [built.get_data_info(index) for index in range(len(built))]
        if 'gt_label' not in samples[0]:
            raise ValueError('--stored is for classification: its sets have no masks')
        self.labels = np.bincount([info['gt_label'] for info in samples])
        # Data sets that number their folders say so: mmpretrain's, and Tiny-ImageNet.
        numbers = getattr(built, 'folder_to_idx', None) or {}
        self.class_folders = getattr(built, 'class_folders', sorted(numbers, key=numbers.get))
        if not (self.of_arrays or self.class_folders or self.place.loader is None):
            self.class_folders = self._folders_of(samples)

    def dataset(self, corruption: str, severity: int) -> dict:
        """Return the config of one corruption at one severity, packed as the clean data are."""
        rest = self.pipeline[self.place.index :]
        common = dict(data_root=self.root, corruption=corruption, severity=severity)
        if self.metainfo:
            common['metainfo'] = deepcopy(self.metainfo)
        if self.of_arrays:
            order = self.place.channel_order
            return dict(type='CIFARC', **common, channel_order=order, pipeline=deepcopy(rest))
        if not Path(self.root, corruption, str(severity)).is_dir():
            raise FileNotFoundError(
                f'--stored {self.root} has neither {LABELS}, as CIFAR-10-C, nor a folder '
                f'{corruption}/{severity}, as ImageNet-C'
            )
        if self.place.loader is None or self.place.flipped:
            raise ValueError(
                '--stored in folders needs a test pipeline that loads files and keeps them in BGR'
            )
        pipeline = deepcopy([*self.pipeline[: self.place.loader + 1], *rest])
        return dict(type='ImageNetC', **common, class_folders=self.class_folders, pipeline=pipeline)

    def check(self, corruptions: Sequence[str], severities: Sequence[int]) -> None:
        """Raise an error if one of them is missing or broken, or has other classes or sizes.

        Raises:
            FileNotFoundError: If an array or a folder is not there.
            ValueError: For the others.
        """
        for corruption in corruptions:
            for severity in severities:
                config = self.dataset(corruption, severity)
                where = f'{self.root}, {corruption} {severity},'
                found, shape = self._found(config)
                if not np.array_equal(found, self.labels):
                    raise ValueError(
                        f'--stored {where} is from another data set: it has {found.sum():,} images '
                        f'in {len(found)} classes, the clean test data {self.labels.sum():,} in '
                        f'{len(self.labels)}, or classes of other sizes'
                    )
                if shape != self.place.shape:
                    raise ValueError(
                        f'--stored {where} has images of {_size(shape)} pixels, but clean ones '
                        f'are {_size(self.place.shape)} where they would be corrupted'
                    )
        _build(config, self.scope)[0]  # what is alike in all of them: how an image is loaded

    def _found(self, config: Mapping) -> tuple[np.ndarray, tuple[int, int]]:
        """Return the number of images in each class, and the size of the first one."""
        built = _build({**config, 'pipeline': []}, self.scope)
        counts = np.bincount(
            [built.get_data_info(index)['gt_label'] for index in range(len(built))]
        )
        first = built.get_data_info(0) if len(built) else {'img': np.empty((0, 0))}
        if 'img' in first:
            return counts, first['img'].shape[:2]
        with Image.open(first['img_path']) as image:  # which reads its header alone
            return counts, image.size[::-1]

    def _folders_of(self, samples: Sequence[Mapping]) -> list[str]:
        """Return the classes' folders by label, where an ``ann_file`` numbers the classes.

        The clean images lie in folders of the same names; or all in one, as ImageNet's, under the
        names that they have in the stored set.
        """
        paths = [Path(info.get('img_path') or '') for info in samples]
        labels = {path.stem: info['gt_label'] for path, info in zip(paths, samples, strict=True)}
        folder = min(Path(self.root).glob('*/[1-5]'), default=Path(self.root))
        by_folder = [(s['gt_label'], p.parent.name) for p, s in zip(paths, samples, strict=True)]
        by_file = [(labels.get(path.stem), path.parent.name) for path in folder.glob('*/*.*')]
        for pairs in (set(by_folder), set(by_file)):
            names = dict(pairs)
            one_to_one = len(names) == len(pairs) == len(set(names.values()))
            if one_to_one and names.keys() == set(range(len(names))):
                return [names[label] for label in range(len(names))]
        raise ValueError(
            f'--stored {self.root}: cannot match its folders with classes: neither folders nor '
            'files of the clean test data have their names'
        )


def _build(config: Mapping, scope: str | None):
    with DATASETS.switch_scope_and_registry(scope) as registry:
        dataset = registry.build(deepcopy(config))
    if hasattr(dataset, 'full_init'):
        dataset.full_init()
    return dataset


def _size(shape: Sequence[int]) -> str:
    return '×'.join(map(str, shape))
