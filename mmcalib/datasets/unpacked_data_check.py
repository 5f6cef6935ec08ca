"""What tools/prepare_data.py does: look through an unpacked data set. It fetches nothing."""

from __future__ import annotations

import hashlib
import os
import pickle
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

# Official sizes. The md5 sums of CIFAR-10 are those that mmpretrain checks as well.
CIFAR10 = {
    'data_batch_1': 'c99cafc152244af753f735de768cd75f',
    'data_batch_2': 'd4bba439e000b95fd0a9bffe97cbabec',
    'data_batch_3': '54ebc095f3ab1f0389bbae665268c751',
    'data_batch_4': '634d18415352ddfa80567beed471001a',
    'data_batch_5': '482c414d41f54cd18b22e5b47cb7c3cb',
    'test_batch': '40351d587109b95175f43aff81a1287e',
    'batches.meta': '5ff9c542aee3614f3951f8cda6e48888',
}
CIFAR10_BATCH = 10_000
TINY_IMAGENET = {'classes': 200, 'train': 500, 'val': 50}  # images per class
CUB = {'classes': 200, 'train': 5994, 'test': 5794}
VOC2012 = {'train': 1464, 'val': 1449}
VOC_CLASSES = 21
NEWSGROUPS = {'20news-bydate-train': 11_314, '20news-bydate-test': 7532, '20_newsgroups': 19_997}
NUM_GROUPS = 20


@dataclass
class Report:
    """What was found: rows of (what, found, expected), and sentences on what is wrong, by kind."""

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
    images, labels = Counter(), set()
    for name, md5 in CIFAR10.items():
        path = root / 'cifar-10-batches-py' / name
        if not path.is_file():
            report.add('missing files', f'{path} is missing')
            continue
        content = path.read_bytes()
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found != md5:
            report.add(
                'other files',
                f'{path} is not the official file: {len(content):,} bytes of md5 {found}, expected '
                f'{md5}',
            )
        # Only what has the official sum is safe to unpickle.
        elif name != 'batches.meta':
            batch = pickle.loads(content, encoding='latin1')
            images['test' if name == 'test_batch' else 'train'] += len(batch['data'])
            labels.update(batch['labels'])
    report.count('training images', images['train'], 5 * CIFAR10_BATCH)
    report.count('test images', images['test'], CIFAR10_BATCH)
    report.count('classes', len(labels), 10)


def _check_tiny_imagenet(root: Path, report: Report) -> None:
    files, folder = tiny_imagenet_files, str(root)
    wnids = (root / 'wnids.txt').read_text(encoding='utf-8').split()
    problem = files.wnids_problem(folder, wnids)
    if problem:
        report.add('wnids.txt', problem)
    val, folders = [], files.train_folders(folder)
    try:
        files.read_names(folder, wnids)
    except (FileNotFoundError, ValueError) as error:
        report.add('words.txt', str(error))
    try:
        val, bad = files.read_annotations(folder)
        if bad:
            report.add(files.ANNOTATIONS, files.annotations_problem(folder, bad))
    except FileNotFoundError as error:
        report.add(files.ANNOTATIONS, str(error))
    report.count('classes in wnids.txt', len(wnids), TINY_IMAGENET['classes'])
    train = []
    # Also of the classes that the list lacks, so that its fault is not that of the images.
    for wnid in dict.fromkeys([*wnids, *folders]):
        try:
            images = files.train_images(folder, wnid)
        except FileNotFoundError:
            report.add('missing folders', f'{root}/train/{wnid}/images is missing')
            continue
        if len(images) != TINY_IMAGENET['train']:
            report.add(
                'folders with too few or too many images',
                f'{root}/train/{wnid}/images has {len(images):,} images, expected '
                f'{TINY_IMAGENET["train"]:,}',
            )
        train += images
    classes = TINY_IMAGENET['classes']
    report.count('training images', len(train), classes * TINY_IMAGENET['train'])
    report.count('validation images', len(val), classes * TINY_IMAGENET['val'])
    for wnid, count in sorted(Counter(wnid for _, wnid in val).items()):
        if wnid not in wnids and wnid not in folders:
            report.add(
                'classes of the annotations without a folder',
                f'{files.ANNOTATIONS}: {wnid} is neither in wnids.txt nor in train/',
            )
        elif count != TINY_IMAGENET['val']:
            report.add(
                'classes with too few or too many annotations',
                f'{files.ANNOTATIONS}: {count} images of {wnid}, expected {TINY_IMAGENET["val"]}',
            )
    for path, size in _images([path for path, _ in train + val], _size, report):
        if size != (64, 64):
            report.add('images of another size', f'{path} is {size[0]}×{size[1]}, expected 64×64')


def _check_cub(root: Path, report: Report) -> None:
    tables = {}
    for name in ('images.txt', 'image_class_labels.txt', 'train_test_split.txt'):
        if not (root / name).is_file():
            report.add('missing files', f'{root / name} is missing')
            continue
        rows = [line.split() for line in (root / name).read_text().splitlines() if line.strip()]
        bad = [row for row in rows if len(row) != 2]
        if bad:
            report.add(
                'malformed lines',
                f'{root / name}: not an id and a value in {len(bad):,} lines, such as '
                f'{" ".join(bad[0])!r}',
            )
        tables[name] = {row[0]: row[1] for row in rows if len(row) == 2}
    if len(tables) < 3:
        return
    images, labels, split = tables.values()
    for name, table in tables.items():
        if table.keys() != images.keys():
            report.add(
                'lists of other images',
                f'{root / name} has {len(table):,} ids, not the {len(images):,} of images.txt',
            )
    parts = Counter(split.values())
    report.count('training images', parts['1'], CUB['train'])
    report.count('test images', parts['0'], CUB['test'])
    report.count('classes', len(set(labels.values())), CUB['classes'])
    wanted = {str(label) for label in range(1, CUB['classes'] + 1)}
    for label in sorted(set(labels.values()) - wanted):
        report.add(
            'unknown classes',
            f'image_class_labels.txt: class {label} is not from 1 to {CUB["classes"]}',
        )
    paths = [str(root / 'images' / name) for name in images.values()]
    report.count('images', sum(1 for _ in _images(paths, _size, report)), len(paths))


def _check_voc2012(root: Path, report: Report) -> None:
    names = {}
    for split, expected in VOC2012.items():
        path = root / 'ImageSets/Segmentation' / f'{split}.txt'
        names[split] = path.read_text().split() if path.is_file() else []
        if not path.is_file():
            report.add('missing files', f'{path} is missing')
        report.count(f'names in {split}.txt', len(names[split]), expected)
    for name in sorted(set(names['train']) & set(names['val'])):
        report.add('images in two splits', f'{name} is in both train.txt and val.txt')
    listed = list(dict.fromkeys(name for split in names.values() for name in split))
    images = [str(root / 'JPEGImages' / f'{name}.jpg') for name in listed]
    masks = [str(root / 'SegmentationClass' / f'{name}.png') for name in listed]
    sizes = {Path(path).stem: size for path, size in _images(images, _size, report)}
    report.count('images', len(sizes), len(listed))
    seen = np.zeros(256, dtype=np.int64)
    readable = 0
    for path, (own, labels) in _images(masks, _size_and_labels, report):
        readable += 1
        seen += labels
        size = sizes.get(Path(path).stem, own)
        if own != size:
            report.add(
                'masks of another size than their image',
                f'{path} is {own[0]}×{own[1]}, its image {size[0]}×{size[1]}',
            )
        wrong = [label for label in np.flatnonzero(labels) if VOC_CLASSES <= label < 255]
        if wrong:
            report.add(
                'masks with unknown labels',
                f'{path}: labels {", ".join(map(str, wrong))} in {labels[wrong].sum():,} pixels; '
                f'there are 0 to {VOC_CLASSES - 1}, and 255',
            )
    report.count('masks', readable, len(listed))
    report.count('classes in the masks', int((seen[:VOC_CLASSES] > 0).sum()), VOC_CLASSES)


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
        for path, wrong in zip(posts, _scan(_post_problem, posts, 'Reading posts'), strict=True):
            if wrong:
                report.add('empty or unreadable posts', f'{path} {wrong}')


def _post_problem(path: Path) -> str | None:
    try:
        return None if path.read_bytes().strip() else 'is empty'
    except OSError as error:
        return f'cannot be read: {error}'


def _images(paths: Sequence[str], look: Callable, report: Report) -> Iterator[tuple]:
    """Yield path and ``look(image)`` of those that can be decoded, and report the others."""
    absent = Counter(folder for folder in map(os.path.dirname, paths) if not os.path.isdir(folder))
    for folder, count in absent.items():
        report.add('missing folders', f'{folder} is missing, with {count:,} images')
    paths = [path for path in paths if os.path.dirname(path) not in absent]
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


def _size_and_labels(mask: Image.Image) -> tuple[tuple[int, int], np.ndarray]:
    if mask.mode not in ('P', 'L'):
        raise ValueError(f'its mode is {mask.mode}, not one label per pixel (P or L)')
    return mask.size, np.bincount(np.asarray(mask).ravel(), minlength=256)


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
