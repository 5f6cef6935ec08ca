"""Names of the files that a run leaves, and writing a file whole or not at all."""

from __future__ import annotations

import os
import secrets
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmcalib.errors import UserError

# Of a test, and of a test on the validation split.
RESULTS = 'results.json'
VALIDATION_RESULTS = 'results_val.json'
# The tables that reliability diagrams are drawn from, and the images of confidence maps.
STATISTICS = 'calibration.npz'
MAPS = 'confidence_maps.npz'
# Of a sweep over a parameter of the loss.
SWEEP = 'sweep.json'
# What numpy raises for tables and maps that are cut off, overwritten, or of another kind.
BROKEN_FILE = (AttributeError, EOFError, KeyError, TypeError, ValueError)
BROKEN_FILE += (zipfile.BadZipFile, zlib.error)
# Bytes that a disk must have left: a config, a log and results need about half of it.
ROOM = 2**16


def of_split(file: str, split: str) -> str:
    """Return ``calibration_val.npz`` for ``calibration.npz`` and the split ``'val'``."""
    path = Path(file)
    return f'{path.stem}_val{path.suffix}' if split == 'val' else file


def experiment_name(config_path: str) -> str:
    """Return ``mbls/digits`` for ``configs/mbls/digits.py``, the bare name outside of a `configs`.

    The folder is kept since the same experiment has the same file name under every loss.
    """
    path = Path(config_path).resolve().with_suffix('')
    parts = path.parts
    if 'configs' in parts[:-1]:
        last = len(parts) - 1 - parts[::-1].index('configs')
        return '/'.join(parts[last + 1 :])
    return path.name


def check_writable(path: str | Path) -> None:
    """Raise a UserError that names the file if it cannot be written, before a run of hours.

    So it is on a full disk. Its folder may be missing; none is made yet.
    """
    path = Path(path)
    if os.path.isdir(path):
        raise UserError(f'{path} is a folder: name a file')
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        options = dict(dir=folder, prefix=f'.{path.stem}.', suffix=path.suffix)
        with tempfile.NamedTemporaryFile(**options) as file:
            file.write(bytes(ROOM))
    except OSError as error:
        raise UserError(f'{path} cannot be written: {error.strerror} ({folder})') from error


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Give the path of a temporary file that becomes `path` when the block ends without an error.

    So a file is there as a whole, old or new, whenever a process is killed. Its folder is made. An
    OSError, as of a full disk, names the file.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # With the suffix of the file, since some writers add theirs where it lacks.
    temporary = path.with_name(f'.{path.stem}.{secrets.token_hex(8)}{path.suffix}')
    try:
        # In a shared folder, another user may have put a link under a name that can be guessed.
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)
