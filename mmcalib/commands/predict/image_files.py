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

IMAGES = tuple(f'.{kind}' for kind in ('bmp', 'dib', 'gif', 'jp2', 'jpe', 'jpeg', 'jpg', 'pbm',
                'pgm', 'png', 'pnm', 'ppm', 'tif', 'tiff', 'webp'))  # fmt: skip
LISTS = frozenset({'.lst', '.txt'})


def find_images(sources: Sequence[str | Path]) -> list[Path]:
    """Return the files that are meant, each once, those of a folder in the order of their names.

    Args:
        sources: Files, of whatever name; folders, of which all images count, also those further
            down; patterns such as ``day*/*.jpg``; and ``.txt`` or ``.lst`` files with a path a
            line, from the current folder or else from that of the list.

    Raises:
        UserError: If a source is not there, or names no image.
    """
    found: dict[str, Path] = {}
    for source in map(str, sources):
        for path in _files_of(source):
            found.setdefault(os.path.abspath(path), path)
    if not found:
        raise UserError('name at least one image, a folder, a pattern or a list')
    return list(found.values())


def _files_of(source: str) -> list[Path]:
    path = Path(source)
    if path.is_file():
        return _files_listed(path) if path.suffix.lower() in LISTS else [path]
    if path.is_dir():
        files, what = sorted(_files_below(path)), f'the folder {source} has'
    elif glob.has_magic(source):
        files = [Path(name) for name in sorted(glob.glob(source, recursive=True))]
        what = f'{source!r} matches'
    else:
        raise UserError(f'there is no image, folder or list {source!r} in {os.getcwd()}')
    # A link to nothing is named with what cannot be read.
    images = [file for file in files if file.suffix.lower() in IMAGES and not file.is_dir()]
    if not images:
        raise UserError(f'{what} no image among {len(files)} files')
    return images


def _files_below(folder: Path) -> Iterator[Path]:
    seen = set()  # links may lead in a circle
    for where, folders, names in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(where))
        folders[:] = [name for name in folders if not name.startswith('.')]
        folders[:] = [f for f in folders if os.path.realpath(os.path.join(where, f)) not in seen]
        yield from (Path(where, name) for name in names if not name.startswith('.'))


def _files_listed(file: Path) -> list[Path]:
    lines = map(str.strip, file.read_text(encoding='utf-8-sig').splitlines())
    lines = [line for line in lines if line and not line.startswith('#')]
    listed = [line if os.path.exists(line) else os.path.join(file.parent, line) for line in lines]
    if not any(map(os.path.isfile, listed)):
        raise UserError(
            f'none of the {len(lines)} lines of {file} is a file: write one path per line, '
            'relative to the current folder or to the list'
        )
    # Single ones that are missing are named with those that cannot be read.
    return list(map(Path, listed))


GREY = 'grey, read as colour'


def look_at(image: Path) -> tuple[str, str]:
    """Return the reason why a file is no whole image, and a remark on one; empty if none.

    The toolboxes read all files as 8-bit colour images, and fill what was cut off with grey.
    """
    problem = file_problem(str(image))
    if problem:
        return problem, ''
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            with Image.open(image) as file:
                mode, frames = file.mode, getattr(file, 'n_frames', 1)
                file.draft('RGB', (1, 1))  # an eighth of a JPEG suffices
                file.load()
    except (UnidentifiedImageError, Image.DecompressionBombError):
        unread = cv2.imdecode(np.fromfile(image, np.uint8), cv2.IMREAD_UNCHANGED) is None
        return 'it is not an image' * unread, ''
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        return f'it is damaged: {error}', ''
    notes = [f'{mode} pixels were read as 8-bit'] if mode[0] in 'IF' else []
    notes += [GREY] if mode in ('1', 'L', 'LA') or mode[0] in 'IF' else []
    notes += [f'the first of {frames} frames'] if frames > 1 else []
    return '', '; '.join(notes)
