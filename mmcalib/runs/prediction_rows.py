"""The rows of predicted images: lines of JSON, of each process in a file of its own, then in one.

A process may be killed at any time, or find the disk full: its last line is whole or not there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmcalib.work_dir_files import whole_file

ROWS = 'predictions.jsonl'
PARTS = 'predictions.*.jsonl'


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
    found = {row['image']: row for row in before}
    for part in parts:
        for row in read_rows(part):
            found.setdefault(row['image'], row)
    place = {os.path.abspath(image): number for number, image in enumerate(images)}
    rows = sorted(found.values(), key=lambda row: place.get(os.path.abspath(row['image']), -1))
    if rows != before:
        with whole_file(folder / ROWS) as path:
            path.write_bytes(b''.join(map(_line, rows)))
    for part in parts:
        part.unlink()
    return rows


def _line(row: Mapping) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode() + b'\n'
