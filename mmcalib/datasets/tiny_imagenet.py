"""Tiny-ImageNet, read from the official folder."""

from __future__ import annotations

import os

from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from mmcalib.datasets.data_sources import SOURCES

SPLITS = ('train', 'val')
ANNOTATIONS = 'val/val_annotations.txt'


@DATASETS.register_module()
class TinyImageNet(BaseDataset):
    """Tiny-ImageNet: 200 classes of 64×64 images, from ``tiny-imagenet-200/`` as it unpacks.

    Classes are numbered by the lines of ``wnids.txt`` and named by ``words.txt``. Training images
    come by class, then by name; validation images as in ``val_annotations.txt``.

    Args:
        data_root: The folder, which holds ``wnids.txt``, ``words.txt``, ``train/`` and ``val/``.
        split: ``'train'``, 100,000 images, or ``'val'``, 10,000, which the paper tests on. The
            official test images have no public labels.
        pipeline: Transforms; each sample comes with ``img_path`` and ``gt_label``.
        **kwargs: Further arguments of mmengine's ``BaseDataset``, such as ``indices``.

    Raises:
        ValueError: If the split is unknown or the files contradict each other.
        FileNotFoundError: If a file or a folder is not there.
    """

    def __init__(self, data_root: str, split: str, *, pipeline=(), **kwargs) -> None:
        if split not in SPLITS:
            raise ValueError(
                f'split must be one of {SPLITS}, got {split!r}; the official test images have no '
                'public labels'
            )
        self.split = split
        data_root = os.path.expanduser(data_root)
        super().__init__(data_root=data_root, pipeline=list(pipeline), **kwargs)

    def load_data_list(self) -> list[dict]:
        wnids = read_wnids(self.data_root)
        self._metainfo.setdefault('classes', read_names(self.data_root, wnids))
        if self.split == 'train':
            pairs = (pair for wnid in wnids for pair in train_images(self.data_root, wnid))
        else:
            pairs = val_images(self.data_root)
        labels = {wnid: label for label, wnid in enumerate(wnids)}
        data_list = []
        for path, wnid in pairs:
            if wnid not in labels:
                raise ValueError(f'{path}: its class {wnid!r} is not in wnids.txt')
            data_list.append({'img_path': path, 'gt_label': labels[wnid]})
        return data_list


def read_wnids(root: str) -> list[str]:
    """Return the WordNet ids of the classes, in the order of their labels."""
    return [line.strip() for line in _lines(root, 'wnids.txt') if line.strip()]


def read_names(root: str, wnids: list[str]) -> tuple[str, ...]:
    """Return the names of classes."""
    rows = (line.rstrip('\n').partition('\t') for line in _lines(root, 'words.txt'))
    words = {wnid: name for wnid, _, name in rows}
    unnamed = [wnid for wnid in wnids if wnid not in words]
    if unnamed:
        raise ValueError(f'{os.path.abspath(root)}/words.txt has no name for {unnamed[0]}')
    return tuple(words[wnid] for wnid in wnids)


def train_images(root: str, wnid: str) -> list[tuple[str, str]]:
    """Return path and WordNet id of a class's training images, sorted by name."""
    folder = os.path.join(root, 'train', wnid, 'images')
    if not os.path.isdir(folder):
        raise FileNotFoundError(_missing(folder))
    names = sorted(name for name in os.listdir(folder) if name.endswith('.JPEG'))
    return [(os.path.join(folder, name), wnid) for name in names]


def val_images(root: str) -> list[tuple[str, str]]:
    """Return path and WordNet id of the validation images, in the official order."""
    folder = os.path.join(root, 'val', 'images')
    pairs = []
    for number, line in enumerate(_lines(root, ANNOTATIONS), 1):
        row = line.split('\t')
        if len(row) < 2:
            raise ValueError(f'{os.path.join(root, ANNOTATIONS)}, line {number}: no class')
        pairs.append((os.path.join(folder, row[0]), row[1]))
    return pairs


def _lines(root: str, name: str) -> list[str]:
    path = os.path.join(root, name)
    if not os.path.isfile(path):
        raise FileNotFoundError(_missing(path))
    with open(path, encoding='utf-8') as file:
        return file.readlines()


def _missing(path: str) -> str:
    return f'there is no {os.path.abspath(path)}. {SOURCES["TinyImageNet"]}'
