"""The work dir of a run: its lock, and the files of an earlier run."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from mmengine.config import Config

from mmcalib.errors import UserError
from mmcalib.files import EARLIER, RESULTS, VALIDATION_RESULTS, check_writable
from mmcalib.runs.record import Record, checkpoint_paths

# Files that a training and its test leave beside logs.
RUN_FILES = ('*.pth', '*.json', '*.npz', 'last_checkpoint')


def set_aside(folder: str | Path, *, keep: str | None = None) -> Path | None:
    """Move the files of an earlier run in a work dir into its next free folder ``earlier_N``.

    So one work dir never holds checkpoints and results of two trainings. Folders of tests go with
    the checkpoints that they tested, and logs stay.

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
            if path.is_file() and path.resolve() != kept:
                paths.append(path)
    if not paths:
        return None
    # The config of an attached calibration lies beside its checkpoint.
    paths += [path.with_suffix('.py') for path in paths if path.suffix == '.pth']
    paths = [path for path in paths if path.exists()]
    paths += folders_of_tests(folder, paths)
    return move_aside(folder, paths)


def move_aside(folder: Path, paths: Sequence[Path]) -> Path:
    """Move paths into the next free folder ``earlier_N`` of a folder, and return it."""
    for number in itertools.count(1):
        backup_dir = folder / f'{EARLIER}{number}'
        if not backup_dir.exists():
            break
    backup_dir.mkdir()
    for path in paths:
        path.rename(backup_dir / path.name)
    return backup_dir


def folders_of_tests(folder: Path, checkpoints: Sequence[Path]) -> list[Path]:
    """Return the folders in a work dir that hold nothing but tests of these checkpoints.

    Args:
        folder: The work dir.
        checkpoints: Paths, of which some may be other files.
    """
    names = {path.resolve() for path in checkpoints}
    folders = []
    for child in sorted(path for path in folder.iterdir() if path.is_dir()):
        if child.name.startswith(EARLIER):
            continue
        files = [*child.rglob(RESULTS), *child.rglob(VALIDATION_RESULTS)]
        tested = set()
        try:
            for file in files:
                tested.update(checkpoint_paths(Record.read(file).model))
        except UserError:  # It may be of anything, so it stays.
            continue
        if tested and {Path(path).resolve() for path in tested} <= names:
            folders.append(child)
    return folders


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


def checkpoint_hook(cfg: Config) -> Mapping:
    """Return the config of a run's CheckpointHook, empty without one."""
    return (cfg.get('default_hooks') or {}).get('checkpoint') or {}


def checkpoint_folder(work_dir: str | Path, hook: Mapping) -> Path:
    """Return the folder of a run's checkpoints: the work dir, or one in its CheckpointHook's own.

    mmengine joins the ``out_dir`` of the hook and the last part of the work dir.

    Args:
        work_dir: Work dir of the run.
        hook: Config of its CheckpointHook.
    """
    work_dir = os.path.abspath(work_dir)
    out_dir = hook.get('out_dir') or work_dir
    return Path(work_dir if out_dir == work_dir else os.path.join(out_dir, Path(work_dir).name))


@contextmanager
def locked_checkpoint_folder(cfg: Config, *, first: bool = True) -> Iterator[None]:
    """Hold the folder of a run's checkpoints where it is not the work dir, see :func:`locked`.

    Trainings whose work dirs have one last name share it. mmengine would replace and remove the
    checkpoints of an earlier one: lost data.

    Raises:
        UserError: If it has checkpoints, and the run does not go on from those.
    """
    folder = checkpoint_folder(cfg.work_dir, checkpoint_hook(cfg))
    if str(folder) == os.path.abspath(cfg.work_dir) or ':/' in str(folder):  # or a remote one
        yield
        return
    with locked(folder, first=first):
        last = Path(cfg.work_dir, 'last_checkpoint')
        is_resumed = (
            cfg.get('resume')
            and last.is_file()
            and Path(last.read_text().strip()).parent.resolve() == folder.resolve()
        )
        if not is_resumed and any(folder.glob('*.pth')):
            raise UserError(
                f'{folder} has checkpoints of an earlier training, which this one would replace: '
                'set default_hooks.checkpoint.out_dir to another folder, or move them'
            )
        yield
