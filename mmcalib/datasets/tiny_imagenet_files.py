"""The files of an unpacked Tiny-ImageNet: its classes, names, images and their annotations."""

from __future__ import annotations

import os

from mmcalib.datasets.download_sources import SOURCES

ANNOTATIONS = 'val/val_annotations.txt'


def read_wnids(root: str) -> list[str]:
    """Return the WordNet ids of the classes, in the order of their labels.

    Raises:
        FileNotFoundError: If there is no ``wnids.txt``.
        ValueError: If it lacks a class that ``train/`` has, or names one twice: all labels after it
            would be others.
    """
    wnids = [line.strip() for line in _lines(root, 'wnids.txt') if line.strip()]
    problem = wnids_problem(root, wnids)
    if problem:
        raise ValueError(f'{problem}. `tools/prepare_data.py tinyimagenet` checks the rest')
    return wnids


def wnids_problem(root: str, wnids: list[str]) -> str | None:
    """Return how ``wnids.txt`` contradicts itself or the folders of ``train/``, None if neither."""
    path = os.path.join(os.path.abspath(root), 'wnids.txt')
    twice = sorted({wnid for wnid in wnids if wnids.count(wnid) > 1})
    if twice:
        return f'{path} names {len(twice)} classes twice, such as {twice[0]}'
    folders = train_folders(root)
    unlisted = [wnid for wnid in folders if wnid not in wnids]
    if unlisted:
        return (
            f'{path} names {len(wnids)} classes, but train/ has {len(folders)} folders: it lacks '
            f'{len(unlisted)} of them, such as {unlisted[0]}'
        )
    return None


def train_folders(root: str) -> list[str]:
    """Return the names of the folders of ``train/``, sorted; none if there is no such folder."""
    folder = os.path.join(root, 'train')
    if not os.path.isdir(folder):
        return []
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())


def read_names(root: str, wnids: list[str]) -> tuple[str, ...]:
    """Return the names of classes."""
    rows = (line.rstrip('\n').partition('\t') for line in _lines(root, 'words.txt'))
    words = {wnid: name for wnid, _, name in rows}
    unnamed = [wnid for wnid in wnids if wnid not in words]
    if unnamed:
        raise ValueError(
            f'{os.path.abspath(root)}/words.txt has no name for {len(unnamed)} of {len(wnids)} '
            f'classes, such as {unnamed[0]}'
        )
    return tuple(words[wnid] for wnid in wnids)


def train_images(root: str, wnid: str) -> list[tuple[str, str]]:
    """Return path and WordNet id of a class's training images, sorted by name."""
    folder = os.path.join(root, 'train', wnid, 'images')
    if not os.path.isdir(folder):
        raise FileNotFoundError(_missing(folder))
    names = sorted(name for name in os.listdir(folder) if name.endswith('.JPEG'))
    return [(os.path.join(folder, name), wnid) for name in names]


def val_images(root: str) -> list[tuple[str, str]]:
    """Return path and WordNet id of the validation images, in the official order.

    Raises:
        FileNotFoundError: If there are no annotations.
        ValueError: If lines of them have no class.
    """
    pairs, bad = read_annotations(root)
    if bad:
        raise ValueError(annotations_problem(root, bad))
    return pairs


def read_annotations(root: str) -> tuple[list[tuple[str, str]], list[int]]:
    """Return path and WordNet id of the validation images, and the numbers of lines without."""
    folder = os.path.join(root, 'val', 'images')
    pairs, bad = [], []
    for number, line in enumerate(_lines(root, ANNOTATIONS), 1):
        row = line.split('\t')
        if len(row) < 2:
            bad.append(number)
        else:
            pairs.append((os.path.join(folder, row[0]), row[1].strip()))
    return pairs, bad


def annotations_problem(root: str, bad: list[int]) -> str:
    """Return what is wrong with the lines of these numbers."""
    return f'{os.path.join(root, ANNOTATIONS)}, line {bad[0]}: no class' + (
        f', nor in {len(bad) - 1} others' if len(bad) > 1 else ''
    )


def _lines(root: str, name: str) -> list[str]:
    path = os.path.join(root, name)
    if not os.path.isfile(path):
        raise FileNotFoundError(_missing(path))
    with open(path, encoding='utf-8') as file:
        return file.readlines()


def _missing(path: str) -> str:
    return f'there is no {os.path.abspath(path)}. {SOURCES["TinyImageNet"]}'
