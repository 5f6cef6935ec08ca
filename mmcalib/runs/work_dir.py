"""The work dir of a run: its lock, and the files of an earlier run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from mmcalib.errors import UserError
from mmcalib.files import EARLIER, RESULTS, check_writable
from mmcalib.runs.safe_loading import CUT_OFF, damage

# Files that a training and its test leave beside logs.
RUN_FILES = ('*.pth', '*.json', '*.npz', 'last_checkpoint')


def set_aside(folder: str | Path, *, keep: str | None = None) -> Path | None:
    """Move the files of an earlier run in a work dir into its next free folder ``earlier_N``.

    So one work dir never holds checkpoints and results of two trainings. Logs stay. A checkpoint
    that was cut off, as by a kill in the first save of a training, cannot be read and is removed.

    Args:
        folder: The work dir, which may be missing.
        keep: A checkpoint that the next training starts from, which stays.

    Returns:
        The new folder; None if there was nothing to move.
    """
    folder = Path(folder)
    kept = Path(keep).resolve() if keep and '://' not in str(keep) else None
    paths = []
    for pattern in RUN_FILES:
        for path in sorted(folder.glob(pattern)):
            if not path.is_file() or path.resolve() == kept:
                continue
            if path.suffix == '.pth' and damage(path) == CUT_OFF:
                path.unlink()
            else:
                paths.append(path)
    if not paths:
        return None
    backup_dir = next(
        folder / f'{EARLIER}{number}'
        for number in itertools.count(1)
        if not (folder / f'{EARLIER}{number}').exists()
    )
    backup_dir.mkdir()
    for path in paths:
        path.rename(backup_dir / path.name)
    return backup_dir


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
        pass  # Some network file systems have no locks.
    try:
        yield
    finally:
        lock.release()
