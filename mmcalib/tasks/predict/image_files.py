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

from mmcalib.hooks.name_broken_samples_hook import file_problem

IMAGES = tuple(f'.{kind}' for kind in ('bmp', 'dib', 'gif', 'jp2', 'jpe', 'jpeg', 'jpg', 'pbm',
                'pgm', 'png', 'pnm', 'ppm', 'tif', 'tiff', 'webp'))  # fmt: skip
VIDEOS = tuple(f'.{kind}' for kind in ('avi', 'flv', 'm4v', 'mkv', 'mov', 'mp4', 'mpeg', 'mpg',
                'webm', 'wmv'))  # fmt: skip
LISTS = frozenset({'.lst', '.txt'})
FRAMES = 'extract its frames first, for example with `ffmpeg -i VIDEO frames/%06d.png`'


def find_image_files(sources: Sequence[str | Path]) -> list[Path]:
    """Return the files that are meant, each once, those of a folder in the order of their names.

    Args:
        sources: Files, of whatever name; folders, of which all images count, also those further
            down; patterns such as ``day*/*.jpg``; and ``.txt`` or ``.lst`` files with a path a
            line, from the current folder or else from that of the list.

    Raises:
        FileNotFoundError: If a source is not there, or a folder, pattern or list names no image.
        ValueError: If nothing is asked for, or a video.
    """
    if not sources:
        raise ValueError('name at least one image, a folder, a pattern or a list')
    found: dict[str, Path] = {}
    for source in sources:
        for path in _files_of(str(source)):
            found.setdefault(os.path.abspath(path), path)
    return list(found.values())


def _files_of(source: str) -> list[Path]:
    path = Path(source)
    if path.is_dir():
        return _files_in(path)
    if path.is_file():
        if path.suffix.lower() in VIDEOS:
            raise ValueError(f'{source} is a video: {FRAMES}')
        return _files_listed(path) if path.suffix.lower() in LISTS else [path]
    if glob.has_magic(source):
        matches = sorted(glob.glob(source, recursive=True))
        images = [Path(match) for match in matches if _is_image(match)]
        if not images:
            raise FileNotFoundError(_no_image(f'{source!r} matches', matches))
        return images
    raise FileNotFoundError(f'there is no image, folder or list {source!r} in {os.getcwd()}')


def _files_in(folder: Path) -> list[Path]:
    files = sorted(_walk(folder))
    images = [path for path in files if _is_image(path)]
    if not images:
        raise FileNotFoundError(_no_image(f'the folder {folder} has', files))
    return images


def _walk(folder: Path) -> Iterator[Path]:
    seen = set()  # links may lead in a circle
    for where, folders, names in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(where))
        folders[:] = [name for name in folders if not name.startswith('.')]
        folders[:] = [f for f in folders if os.path.realpath(os.path.join(where, f)) not in seen]
        yield from (Path(where, name) for name in names if not name.startswith('.'))


def _files_listed(file: Path) -> list[Path]:
    lines = file.read_text(encoding='utf-8-sig').splitlines()
    lines = [line.strip() for line in lines if line.strip() and not line.startswith('#')]
    if not lines:
        raise FileNotFoundError(f'the list {file} is empty')
    listed = [line if os.path.exists(line) else os.path.join(file.parent, line) for line in lines]
    if not any(os.path.isfile(path) for path in listed):
        raise FileNotFoundError(
            f'none of the {len(lines)} lines of {file} is a file; the first is {lines[0]!r}. '
            'Write one path per line, relative to the current folder or to the list'
        )
    # Single ones that are missing are named with those that cannot be read.
    return [Path(path) for path in listed]


def _is_image(path: str | Path) -> bool:
    # A link to nothing is named with what cannot be read.
    return Path(path).suffix.lower() in IMAGES and not os.path.isdir(path)


def _no_image(start: str, others: Sequence) -> str:
    if any(Path(path).suffix.lower() in VIDEOS for path in others):
        return f'{start} no image, but videos: {FRAMES}'
    return f'{start} no image among {len(others)} files'


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
                mode, frames = _mode(file, image), getattr(file, 'n_frames', 1)
                file.draft('RGB', (1, 1))  # an eighth of a JPEG suffices
                file.load()
    except (UnidentifiedImageError, Image.DecompressionBombError):
        if cv2.imdecode(np.fromfile(image, np.uint8), cv2.IMREAD_UNCHANGED) is None:
            return 'it is not an image', ''
        return '', ''
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        return f'it is damaged: {error}', ''
    notes = [f'{mode} pixels were read as 8-bit'] if mode[0] in 'IF' or '-bit' in mode else []
    notes += ['grey, read as colour'] if mode in ('1', 'L', 'LA') or mode[0] in 'IF' else []
    notes += [f'the first of {frames} frames'] if frames > 1 else []
    return '', '; '.join(notes)


def _mode(file: Image.Image, image: Path) -> str:
    """Return Pillow's mode, which does not tell 16-bit colours from those it makes of them."""
    bits = np.max(getattr(file, 'tag_v2', {}).get(258, 8))  # of a TIFF
    if file.format == 'PNG':
        with image.open('rb') as content:
            bits = content.read(25)[-1]
    return f'16-bit {file.mode}' if bits == 16 and file.mode.startswith('RGB') else file.mode
