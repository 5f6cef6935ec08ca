"""The files that a run leaves in its work dir, their lock, and the name of a run."""

from __future__ import annotations

import itertools
import os
import secrets
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from mmcalib.checks import UserError

# Of a test, and of a test on the validation split.
RESULTS = 'results.json'
VALIDATION_RESULTS = 'results_val.json'
# The tables that reliability diagrams are drawn from, and the images of confidence maps.
STATISTICS = 'calibration.npz'
MAPS = 'confidence_maps.npz'
# Of a sweep over a parameter of the loss.
SWEEP = 'sweep.json'
# What a training and its test leave beside logs, and the folder that a later training moves it to.
OF_A_RUN = ('*.pth', '*.json', '*.npz', 'last_checkpoint')
EARLIER = 'earlier_'
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


def set_aside(folder: str | Path, *, keep: str | None = None) -> Path | None:
    """Move the files of an earlier run in a work dir into its next free folder ``earlier_N``.

    So one work dir never holds checkpoints and results of two trainings. Logs stay.

    Args:
        folder: The work dir, which may be missing.
        keep: A checkpoint that the next training starts from, which stays.

    Returns:
        The new folder; None if there was nothing to move.
    """
    folder = Path(folder)
    kept = Path(keep).resolve() if keep and '://' not in str(keep) else None
    left = [path for pattern in OF_A_RUN for path in sorted(folder.glob(pattern))]
    left = [path for path in left if path.is_file() and path.resolve() != kept]
    if not left:
        return None
    number = next(n for n in itertools.count(1) if not (folder / f'{EARLIER}{n}').exists())
    aside = folder / f'{EARLIER}{number}'
    aside.mkdir()
    for path in left:
        path.rename(aside / path.name)
    return aside


@contextmanager
def locked(folder: str | Path, *, first: bool = True) -> Iterator[None]:
    """Hold a work dir, which is made, for this process; a killed one holds nothing.

    Args:
        folder: The work dir.
        first: Whether this is the first process of a run, which holds it for the others.

    Raises:
        UserError: If another process holds it, or nothing can be written there.
    """
    if not first:
        yield
        return
    check_writable(Path(folder, RESULTS))
    Path(folder).mkdir(parents=True, exist_ok=True)
    lock = FileLock(Path(folder, '.lock'))
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UserError(
            f'{folder} is in use: a training, a test or a sweep runs there, or one that was '
            'stopped left a training behind. Wait until it ends, or name another --work-dir'
        ) from error
    except NotImplementedError:
        pass  # by some network file systems
    try:
        yield
    finally:
        lock.release()
