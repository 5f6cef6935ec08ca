"""Names of the files that a run leaves, and writing a file whole or not at all."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import platform
import re
import secrets
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from mmcalib.errors import UserError

# The record of a test on the test split, and of one on the validation split.
RESULTS = 'results.json'
VALIDATION_RESULTS = 'results_val.json'
# The tables of reliability diagrams, and the images of confidence maps.
STATISTICS = 'calibration.npz'
MAPS = 'confidence_maps.npz'
# The record of a sweep over a parameter of the loss.
SWEEP = 'sweep.json'
# Where a training ended that a hook stopped before its last epoch or iteration.
EARLY_STOP = 'early_stop.json'
# The start of the folder that a later training moves the files of an earlier one to.
EARLIER = 'earlier_'
# The temporary file of one that is being written: the machine and the process that write it.
MACHINE = hashlib.sha256(platform.node().encode()).hexdigest()[:6]
TEMPORARY_NAME = re.compile(
    r'\..*\.(?P<machine>[0-9a-f]{6})-(?P<process>\d{1,7})-[0-9a-f]{8}(\.[^.]*)?'
)
# Errors of numpy for tables and maps that are cut off, overwritten, or of another kind.
BROKEN_FILE = (
    AttributeError,
    EOFError,
    KeyError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)
# Bytes that a disk must have left: a config, a log and results need about half of it.
LEAST_FREE_BYTES = 2**16


def file_name_for_split(name: str, split: str) -> str:
    """Return ``calibration_val.npz`` for ``calibration.npz`` and the split ``'val'``."""
    if split != 'val':
        return name
    path = Path(name)
    return f'{path.stem}_val{path.suffix}'


def experiment_name(config_path: str) -> str:
    """Return ``mbls/digits`` for ``configs/mbls/digits.py``, the bare name outside of a `configs`.

    The folder is kept, since the same experiment has the same file name under every loss.
    """
    path = Path(config_path).resolve().with_suffix('')
    for folder in path.parents:
        if folder.name == 'configs':
            return path.relative_to(folder).as_posix()
    return path.name


def check_writable(path: str | Path, inputs: Iterable[str | Path] = ()) -> None:
    """Raise a UserError that names the file if it cannot be written, as on a full disk.

    It prevents the loss of hours: a run asks before it begins. The folder of the file may be
    missing, and is not made. Nor is it one of the `inputs`, whose content would be lost.
    """
    path = Path(path)
    if os.path.exists(path) and any(os.path.samefile(path, o) for o in inputs if os.path.exists(o)):
        raise UserError(f'{path} is read, and would be overwritten: name another file')
    if os.path.isdir(path):
        raise UserError(f'{path} is a folder: name a file')
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        with tempfile.NamedTemporaryFile(
            dir=folder, prefix=f'.{path.stem}.', suffix=path.suffix
        ) as file:
            file.write(bytes(LEAST_FREE_BYTES))
    except OSError as error:
        raise UserError(f'{path} cannot be written: {error.strerror} ({folder})') from error


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Give the path of a temporary file that becomes `path` when the block ends without an error.

    It prevents lost data: whenever a process is killed, the file is whole, old or new. The folder
    is made. An OSError, as of a full disk, names the file.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent.absolute())
    # The temporary file has the suffix too, since some writers would add theirs.
    mark = f'{MACHINE}-{os.getpid()}-{secrets.token_hex(4)}'
    temporary = path.with_name(f'.{path.stem}.{mark}{path.suffix}')
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


def write_text(path: str | Path, text: str) -> None:
    """Write a text as a whole file; bytes of a file's name that are no text become escapes."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding='utf-8', errors='backslashreplace')


def write_csv(path: str | Path, rows: Iterable[Iterable], *, line_end: str = '\r\n') -> None:
    """Write rows as a whole table of CSV, see :func:`write_text`."""
    with (
        whole_file(path) as temporary,
        temporary.open('w', newline='', encoding='utf-8', errors='backslashreplace') as file,
    ):
        csv.writer(file, lineterminator=line_end).writerows(rows)


def write_json(path: str | Path, content: Any) -> None:
    """Write plain numbers, texts, lists and dicts as a whole file of JSON, None for NaN."""
    write_text(path, f'{json.dumps(without_nan(content), indent=2)}\n')


@cache  # A folder of predictions has a file for each image, and is searched once.
def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files that killed processes of this machine have left in a folder."""
    for path in folder.glob('.*'):
        match = TEMPORARY_NAME.fullmatch(path.name)
        if match and match['machine'] == MACHINE and not is_running(int(match['process'])):
            with suppress(OSError):  # Another process has removed it, or it is another user's.
                path.unlink()


def is_running(process: int) -> bool:
    """Return whether there is a process of this id; elsewhere than on POSIX, assume it."""
    if os.name != 'posix':
        return True
    try:
        os.kill(process, 0)  # Signal 0 is not sent.
    except ProcessLookupError:
        return False
    except PermissionError:  # It is another user's.
        return True
    return True


def without_nan(content: Any) -> Any:
    """Return content as JSON has it, with None in place of NaN and infinity."""
    return json.loads(json.dumps(content), parse_constant=lambda _: None)
