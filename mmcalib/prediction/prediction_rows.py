"""The rows of predicted images, and which image and files they are of.

They are lines of JSON, of each process in a file of its own, then in one.

A process may be killed at any time, or find the disk full: its last line is whole or not there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from mmcalib.work_dir_files import whole_file

ROWS = 'predictions.jsonl'
PARTS = 'predictions.*.jsonl'
KINDS = {'arrays': '.npz', 'pictures': '.png'}  # of an image's files, each in a folder of its own
LONGEST = 160  # bytes of a part of a name; file systems take 255, some 143 of them
# What ends a line or is no text, and yet may be in a file's name.
UNPRINTABLE = re.compile(r'[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]')
STATE = ('path', 'bytes', 'modified')


def rows_file(folder: Path, rank: int) -> Path:
    """Return what a process writes to, the first to the file of all."""
    return folder / (PARTS.replace('*', str(rank)) if rank else ROWS)


def read_rows(file: Path) -> list[dict]:
    """Return the rows of a file, of none if it is not there; a line that was cut off goes."""
    text = file.read_text(encoding='utf-8') if file.is_file() else ''
    *whole, torn = text.split('\n')  # and at nothing else that ends a line, as in a file's name
    if torn:
        with whole_file(file) as path:
            path.write_text(''.join(f'{line}\n' for line in whole), encoding='utf-8')
    return [json.loads(line) for line in whole]


def append_row(file: Path, row: Mapping) -> None:
    """Write a row at the end of a file.

    Raises:
        OSError: If there is no room; the file is as it was.
    """
    line, written = _line(row), 0
    with file.open('ab', buffering=0) as open_file:
        size = open_file.tell()
        try:
            while written < len(line):
                written += open_file.write(line[written:])
        except OSError:
            open_file.truncate(size)
            raise


def join_rows(folder: Path, images: Sequence[Path]) -> list[dict]:
    """Return the rows of all processes, which are in one file from then on.

    Args:
        folder: That they have written to.
        images: In whose order they come, after those of other images.
    """
    before, parts = read_rows(folder / ROWS), sorted(folder.glob(PARTS))
    # What a process has left that was killed between the next two steps is there twice.
    found = {path_of(row): row for row in before}
    for part in parts:
        for row in read_rows(part):
            found.setdefault(path_of(row), row)
    place = {os.path.abspath(image): number for number, image in enumerate(images)}
    rows = sorted(found.values(), key=lambda row: place.get(path_of(row), -1))
    if rows != before:
        write_rows(folder, rows)
    for part in parts:
        part.unlink()
    return rows


def write_rows(folder: Path, rows: Sequence[Mapping]) -> None:
    """Write the rows of all processes, in place of those that are there."""
    with whole_file(folder / ROWS) as path:
        path.write_bytes(b''.join(map(_line, rows)))


def state_of(image: str | Path) -> dict:
    """Return what tells an image file from others of its name, and from what replaces it."""
    path = os.path.abspath(image)
    try:
        status = os.stat(path)
    except OSError:  # which is said when it is to be read
        return {'path': path}
    return {'path': path, 'bytes': status.st_size, 'modified': status.st_mtime_ns}


def path_of(row: Mapping) -> str:
    """Return where the image of a row is; older rows say it from the current folder alone."""
    return row.get('path') or os.path.abspath(row['image'])


def follow_moved(folder: Path, rows: Sequence[Mapping], images: Sequence[Path]) -> list[dict]:
    """Return the rows, and say where images have been moved to that they were of.

    That is one of the images, if nothing is any more where it was, and it alone has its name, size
    and time of change.
    """
    places: dict[tuple, list] = {}
    for image in images:
        places.setdefault(_identity(state_of(image)), []).append(image)
    followed = [dict(row) for row in rows]
    for row in followed:
        found = places.get(_identity(row), ()) if not os.path.exists(path_of(row)) else ()
        if len(found) == 1:
            row.update(image=str(found[0]), path=os.path.abspath(found[0]))
    if followed != list(rows):
        write_rows(folder, followed)
    return followed


def _identity(state: Mapping) -> tuple:
    """Return what a row or a state says of a file, wherever it is."""
    return os.path.basename(path_of(state)), state.get('bytes'), state.get('modified')


def name_for_files(path: str) -> str:
    """Return a path below the folder as its files are to be called.

    A part that is long, or no text to print, is shortened to what is, with a digest.
    """
    return '/'.join(map(_name_for_file, path.split('/')))


def _name_for_file(part: str) -> str:
    plain = UNPRINTABLE.sub('_', part)
    if plain == part and len(os.fsencode(part)) <= LONGEST:
        return part
    start = plain.encode()[: LONGEST - 20].decode(errors='ignore')
    return f'{start}-{sha256(os.fsencode(part)).hexdigest()[:16]}'


def files_of(folder: Path, row: Mapping, kinds: Iterable[str] = tuple(KINDS)) -> list[Path]:
    """Return the files of an image, none for a row that names others than we write."""
    name = row.get('files')
    if not isinstance(name, str) or os.path.isabs(name) or '..' in Path(name).parts:
        return []
    return [folder / kind / f'{name}{KINDS[kind]}' for kind in kinds]


def remove_files(folder: Path, rows: Iterable[Mapping]) -> None:
    """Remove the files that rows name, and folders that have nothing else."""
    for row in rows:
        for path in files_of(folder, row):
            path.unlink(missing_ok=True)
            for parent in path.parents:
                try:
                    if parent == folder:
                        break
                    parent.rmdir()
                except OSError:  # as of one that is not empty
                    break


def remove_rows(folder: Path) -> None:
    """Remove the rows of all processes, and the files that they name; other lines name none."""
    for lines in (*folder.glob(PARTS), folder / ROWS):
        if lines.is_file():
            text = lines.read_text(encoding='utf-8', errors='replace')
            remove_files(folder, filter(None, map(_row_in, text.split('\n'))))
            lines.unlink()


def _row_in(line: str) -> dict | None:
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        return None
    return row if isinstance(row, dict) else None


def _line(row: Mapping) -> bytes:
    # What is no text in a file's name becomes an escape of JSON.
    return json.dumps(row, ensure_ascii=False).encode(errors='backslashreplace') + b'\n'
