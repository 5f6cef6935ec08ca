"""The files of an unpacked Tiny-ImageNet: its classes, names, images and their annotations."""

from __future__ import annotations

import os

from mmcalib.datasets.download_sources import SOURCES


def read_wnids(root: str) -> list[str]:
    """Return the WordNet ids of the classes, in the order of their labels."""
    return ''.join(_lines(root, 'wnids.txt')).split()


def read_names(root: str, wnids: list[str]) -> tuple[str, ...]:
    """Return the names of classes."""
    rows = (line.rstrip('\n').partition('\t') for line in _lines(root, 'words.txt'))
    words = {wnid: name for wnid, _, name in rows}
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
    rows = (line.split('\t') for line in _lines(root, 'val/val_annotations.txt'))
    return [(os.path.join(root, 'val', 'images', row[0]), row[1]) for row in rows]


def _lines(root: str, name: str) -> list[str]:
    path = os.path.join(root, name)
    if not os.path.isfile(path):
        raise FileNotFoundError(_missing(path))
    with open(path, encoding='utf-8') as file:
        return file.readlines()


def _missing(path: str) -> str:
    return f'there is no {os.path.abspath(path)}. {SOURCES["TinyImageNet"]}'
