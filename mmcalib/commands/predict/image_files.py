"""Image files to predict: finding them, and checking that they are whole."""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError

from mmcalib.errors import UserError
from mmcalib.openmmlab.hooks.broken_samples_hook import file_problem

IMAGE_SUFFIXES = (
    '.bmp',
    '.dib',
    '.gif',
    '.jp2',
    '.jpe',
    '.jpeg',
    '.jpg',
    '.pbm',
    '.pgm',
    '.png',
    '.pnm',
    '.ppm',
    '.tif',
    '.tiff',
    '.webp',
)
LIST_SUFFIXES = ('.lst', '.txt')
GREY_NOTE = 'grey, read as colour'
GREY_MODES = ('1', 'L', 'LA')
COLOUR_MODES = ('RGB', 'RGBA')


def find_images(sources: Sequence[str | Path]) -> list[Path]:
    """Return the image files that some sources name, each once.

    Args:
        sources: Files, of whatever name; folders, whose images count in the order of their names,
            also those further down; patterns such as ``day*/*.jpg``; and ``.txt`` or ``.lst`` files
            with a path per line, relative to the current folder or to the list.

    Raises:
        UserError: If a source does not exist, or names no image.
    """
    images: dict[str, Path] = {}
    for source in sources:
        for path in find_source_images(str(source)):
            images.setdefault(os.path.abspath(path), path)
    if not images:
        raise UserError('name at least one image, a folder, a pattern or a list')
    return list(images.values())


def find_source_images(source: str) -> list[Path]:
    """Return the image files that one source names, see :func:`find_images`."""
    path = Path(source)
    if path.is_file():
        return read_list(path) if path.suffix.lower() in LIST_SUFFIXES else [path]
    if path.is_dir():
        files = sorted(walk_files(path))
        subject = f'the folder {source} has'
    elif glob.has_magic(source):
        files = [Path(name) for name in sorted(glob.glob(source, recursive=True))]
        subject = f'{source!r} matches'
    else:
        raise UserError(f'there is no image, folder or list {source!r} in {os.getcwd()}')
    # A broken link counts, so that it is listed with the files that cannot be read.
    images = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES and not file.is_dir()]
    if not images:
        raise UserError(f'{subject} no image among {len(files)} files')
    return images


def walk_files(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and below, without hidden ones."""
    visited = set()  # Links may lead in a circle.
    for parent, subfolders, names in os.walk(folder, followlinks=True):
        visited.add(os.path.realpath(parent))
        # os.walk goes on with the subfolders that are left in its list.
        for name in list(subfolders):
            if name.startswith('.') or os.path.realpath(os.path.join(parent, name)) in visited:
                subfolders.remove(name)
        for name in names:
            if not name.startswith('.'):
                yield Path(parent, name)


def read_list(file: Path) -> list[Path]:
    """Return the paths in a list; missing files are reported later, with the unreadable ones."""
    lines = []
    for line in file.read_text(encoding='utf-8-sig').splitlines():
        text = line.strip()
        if text and not text.startswith('#'):
            lines.append(text)
    paths = [Path(line) if os.path.exists(line) else Path(file.parent, line) for line in lines]
    if not any(path.is_file() for path in paths):
        raise UserError(
            f'none of the {len(lines)} lines of {file} is a file: write one path per line, '
            'relative to the current folder or to the list'
        )
    return paths


def check_image(image: Path) -> tuple[str, str]:
    """Return why a file is no whole image, and how it is read; each empty if there is nothing.

    It prevents wrong numbers: the toolboxes read all files as 8-bit colour images, and fill what
    was cut off with grey.
    """
    problem = file_problem(str(image))
    if problem:
        return problem, ''
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            with Image.open(image) as file:
                mode = file.mode
                # Pillow names 16-bit colours as 8-bit ones; how it decodes them tells.
                is_deep = mode.startswith(('I', 'F')) or ';16' in str(file.tile)
                num_frames = getattr(file, 'n_frames', 1)
                file.draft('RGB', (1, 1))  # An eighth of a JPEG suffices to see that it is whole.
                file.load()
    except (UnidentifiedImageError, Image.DecompressionBombError):
        # OpenCV, which the toolboxes use, may know a format that Pillow does not.
        pixels = cv2.imdecode(np.fromfile(image, np.uint8), cv2.IMREAD_UNCHANGED)
        return ('it is not an image' if pixels is None else ''), ''
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        return f'it is damaged: {error}', ''
    return '', describe_reading(mode, num_frames, is_deep=is_deep)


def describe_reading(mode: str, num_frames: int, *, is_deep: bool) -> str:
    """Return what the toolboxes change when they read an image, empty for nothing.

    Args:
        mode: Mode of the pixels, as Pillow names it.
        num_frames: Number of frames in the file.
        is_deep: Whether pixels have more than 8 bits for each colour.
    """
    notes = []
    if is_deep:
        bits = '16-bit ' if mode in COLOUR_MODES else ''
        notes.append(f'{bits}{mode} pixels were read as 8-bit')
    if mode not in COLOUR_MODES and (is_deep or mode in GREY_MODES):
        notes.append(GREY_NOTE)
    if num_frames > 1:
        notes.append(f'the first of {num_frames} frames')
    return '; '.join(notes)
