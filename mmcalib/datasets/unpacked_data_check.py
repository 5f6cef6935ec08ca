"""A look through an unpacked data set, behind tools/prepare_data.py. It fetches nothing."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import track

from mmcalib.datasets import tiny_imagenet_files
from mmcalib.datasets.download_sources import SOURCES

# The md5 sums are those that mmpretrain checks as well.
CIFAR10 = {
    'data_batch_1': 'c99cafc152244af753f735de768cd75f',
    'data_batch_2': 'd4bba439e000b95fd0a9bffe97cbabec',
    'data_batch_3': '54ebc095f3ab1f0389bbae665268c751',
    'data_batch_4': '634d18415352ddfa80567beed471001a',
    'data_batch_5': '482c414d41f54cd18b22e5b47cb7c3cb',
    'test_batch': '40351d587109b95175f43aff81a1287e',
    'batches.meta': '5ff9c542aee3614f3951f8cda6e48888',
}
# Official sizes.
TINY_IMAGENET = {'classes': 200, 'train': 500, 'val': 50}  # images per class
CUB = {'classes': 200, 'train': 5994, 'test': 5794}
VOC2012 = {'train': 1464, 'val': 1449}
VOC_CLASSES = 21
NEWSGROUPS = {'20news-bydate-train': 11_314, '20news-bydate-test': 7532, '20_newsgroups': 19_997}
NUM_GROUPS = 20


@dataclass
class Report:
    """Findings: rows of (thing, found, expected), and sentences about each mistake, by kind."""

    rows: list[tuple[str, int, int]] = field(default_factory=list)
    kinds: dict[str, list[str]] = field(default_factory=dict)

    def count(self, what: str, found: int, expected: int) -> None:
        """Add a row, and a problem if the two numbers differ."""
        self.rows.append((what, found, expected))
        if found != expected:
            self.add(what, f'{what}: found {found:,}, expected {expected:,}')

    def add(self, kind: str, problem: str) -> None:
        """Add a problem, of a kind of which there may be thousands."""
        self.kinds.setdefault(kind, []).append(problem)

    @property
    def problems(self) -> list[str]:
        """All sentences."""
        return [problem for problems in self.kinds.values() for problem in problems]

    def lines(self, most: int = 5) -> Iterator[str]:
        """Yield the first sentences of each kind, and how many others there are."""
        for kind, problems in self.kinds.items():
            yield from problems[:most]
            if len(problems) > most:
                yield f'… and {len(problems) - most:,} more: {kind}'


def check(name: str, root: str) -> Report:
    """Look through an unpacked data set: files, counts, sizes, classes, readability.

    Args:
        name: A key of :data:`CHECKS`.
        root: The folder that the configs call ``data_root``.

    Raises:
        ValueError: If there is no data set of this name.
    """
    if name not in CHECKS:
        raise ValueError(f'name must be one of {tuple(CHECKS)}, got {name!r}')
    look, anchors, _ = CHECKS[name]
    folder, report = Path(root).expanduser(), Report()
    if any((folder / anchor).exists() for anchor in anchors):
        look(folder, report)
    else:
        what = 'neither ' + ' nor '.join(anchors) if len(anchors) > 1 else f'no {anchors[0]}'
        there = 'holds ' + what if folder.is_dir() else 'is no folder'
        report.add('folder', f'{folder.absolute()} {there}{_elsewhere(folder, anchors)}')
    return report


def source(name: str) -> str:
    """Return where a data set comes from and how to unpack it."""
    return SOURCES[CHECKS[name][2]]


def _elsewhere(folder: Path, anchors: Sequence[str]) -> str:
    """Return a hint if the data lie in a folder around or just below the given one."""
    near = [folder.parent, *sorted(folder.glob('*/')), *sorted(folder.glob('*/*/'))]
    for other in near:
        if any((other / anchor).exists() for anchor in anchors):
            return f'; did you mean {other.absolute()}?'
    return ''


def _check_cifar10(root: Path, report: Report) -> None:
    official = 0
    for name, md5 in CIFAR10.items():
        path = root / 'cifar-10-batches-py' / name
        if not path.is_file():
            report.add('missing files', f'{path} is missing')
            continue
        content = path.read_bytes()
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        official += found == md5
        if found != md5:
            report.add(
                'other files',
                f'{path} is not the official file: {len(content):,} bytes of md5 {found}, expected '
                f'{md5}',
            )
    report.count('official files', official, len(CIFAR10))


def _check_tiny_imagenet(root: Path, report: Report) -> None:
    files, expected = tiny_imagenet_files, TINY_IMAGENET
    try:
        wnids, val = files.read_wnids(str(root)), files.val_images(str(root))
        files.read_names(str(root), wnids)
    except FileNotFoundError as error:
        report.add('missing files', str(error))
        return
    report.count('classes in wnids.txt', len(wnids), expected['classes'])
    train = []
    for wnid in wnids:
        try:
            images = files.train_images(str(root), wnid)
        except FileNotFoundError:
            report.add('missing folders', f'{root}/train/{wnid}/images is missing')
            continue
        if len(images) != expected['train']:
            report.add(
                'folders with too few or too many images',
                f'{root}/train/{wnid}/images has {len(images):,} images, expected '
                f'{expected["train"]:,}',
            )
        train += images
    report.count('training images', len(train), expected['classes'] * expected['train'])
    report.count('validation images', len(val), expected['classes'] * expected['val'])
    for path, size in _images([path for path, _ in train + val], _size, report):
        if size != (64, 64):
            report.add('images of another size', f'{path} is {size[0]}×{size[1]}, expected 64×64')


def _check_cub(root: Path, report: Report) -> None:
    tables = []
    for name in ('images.txt', 'image_class_labels.txt', 'train_test_split.txt'):
        if not (root / name).is_file():
            report.add('missing files', f'{root / name} is missing')
            return
        tables.append([line.split()[1] for line in (root / name).read_text().splitlines()])
    images, labels, split = tables
    parts = Counter(split)
    report.count('training images', parts['1'], CUB['train'])
    report.count('test images', parts['0'], CUB['test'])
    report.count('classes', len(set(labels)), CUB['classes'])
    paths = [str(root / 'images' / name) for name in images]
    report.count('images', sum(1 for _ in _images(paths, _size, report)), len(paths))


def _check_voc2012(root: Path, report: Report) -> None:
    names = {}
    for split, expected in VOC2012.items():
        path = root / 'ImageSets/Segmentation' / f'{split}.txt'
        names[split] = path.read_text().split() if path.is_file() else []
        if not path.is_file():
            report.add('missing files', f'{path} is missing')
        report.count(f'names in {split}.txt', len(names[split]), expected)
    listed = list(dict.fromkeys(name for split in names.values() for name in split))
    images = [str(root / 'JPEGImages' / f'{name}.jpg') for name in listed]
    masks = [str(root / 'SegmentationClass' / f'{name}.png') for name in listed]
    report.count('images', sum(1 for _ in _images(images, _size, report)), len(listed))
    labels = list(_images(masks, _labels, report))
    report.count('masks', len(labels), len(listed))
    present = {label for _, found in labels for label in found if label < VOC_CLASSES}
    report.count('classes in the masks', len(present), VOC_CLASSES)


def _check_newsgroups(root: Path, report: Report) -> None:
    # Either of the two archives will do; the one by date is taken where both are.
    bydate = [name for name in NEWSGROUPS if 'bydate' in name]
    older = [name for name in NEWSGROUPS if name not in bydate]
    for part in bydate if any((root / name).is_dir() for name in bydate) else older:
        if not (root / part).is_dir():
            report.add('missing folders', f'{root / part} is missing')
            continue
        groups = [folder for folder in sorted((root / part).iterdir()) if folder.is_dir()]
        posts = [path for group in groups for path in sorted(group.iterdir())]
        report.count(f'groups in {part}', len(groups), NUM_GROUPS)
        report.count(f'posts in {part}', len(posts), NEWSGROUPS[part])
        for path in posts:
            if not path.stat().st_size:
                report.add('empty posts', f'{path} is empty')


def _images(paths: Sequence[str], look: Callable, report: Report) -> Iterator[tuple]:
    """Yield path and ``look(image)`` of those that can be decoded, and report the others."""
    seen = _scan(partial(_decode, look=look), paths, 'Reading images')
    for path, result in zip(paths, seen, strict=True):
        if isinstance(result, str):
            report.add('missing or unreadable images', f'{path} {result}')
        else:
            yield path, result


def _decode(path: str, look: Callable) -> tuple | str:
    """Return ``look(image)`` of an image decoded to its end, or what is wrong with it.

    OpenCV, with which the toolboxes read, fills up truncated files with grey and says nothing.
    """
    if not os.path.isfile(path):
        return 'is missing'
    try:
        with Image.open(path) as image:
            image.load()
            return look(image)
    # Broken PNG chunks end in a SyntaxError, absurd sizes in the last one.
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        return f'cannot be read: {str(error).removesuffix(f" {path!r}")}'


def _size(image: Image.Image) -> tuple[int, int]:
    return image.size


def _labels(mask: Image.Image) -> list[int]:
    if mask.mode not in ('P', 'L'):
        raise ValueError(f'its mode is {mask.mode}, not one label per pixel (P or L)')
    return np.unique(np.asarray(mask)).tolist()


def _scan(function: Callable, items: Sequence, what: str) -> Iterable:
    """Apply a function to many files on several threads, with a progress bar on stderr."""
    with ThreadPoolExecutor() as pool:
        yield from track(
            pool.map(function, items), what, total=len(items), console=Console(stderr=True)
        )


# What looks at a data set, what its folder must hold (any of these), and its key in SOURCES.
CHECKS = {
    'cifar10': (_check_cifar10, ('cifar-10-batches-py',), 'CIFAR10'),
    'tinyimagenet': (_check_tiny_imagenet, ('wnids.txt',), 'TinyImageNet'),
    'cub': (_check_cub, ('images.txt',), 'CUB'),
    'voc2012': (_check_voc2012, ('ImageSets/Segmentation',), 'PascalVOCDataset'),
    '20news': (_check_newsgroups, tuple(NEWSGROUPS), 'Newsgroups20'),
}
