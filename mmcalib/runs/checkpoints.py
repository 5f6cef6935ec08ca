"""Which checkpoint a run reads: whether a file is one, the newest whole one, the best one."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from mmengine import fileio
from mmengine.config import Config
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner, find_latest_checkpoint

LAST_WEIGHTS = 'last weights'


def check_checkpoint(path: str) -> None:
    """Raise an error if a local checkpoint is not there, or is something else."""
    if '://' in path:
        return
    if not os.path.isfile(path):
        raise FileNotFoundError(f'there is no checkpoint {path!r} in {os.getcwd()}')
    with open(path, 'rb') as file:
        start = file.read(2)
    # Of a zip file, whose index comes last; before PyTorch 1.6 it was a bare pickle.
    if not zipfile.is_zipfile(path) and start[:1] != b'\x80':
        why = 'it was not written to its end' if start == b'PK' else 'it is another kind of file'
        raise ValueError(f'{path!r} is no checkpoint: {why}')


def last_checkpoint(folder: str | Path) -> Path | None:
    """Return the newest checkpoint of a training that was written to its end, None without any."""
    whole = [
        path
        for kind in ('epoch', 'iter')
        for path in Path(folder).glob(f'{kind}_*.pth')
        if zipfile.is_zipfile(path)  # its index comes last
    ]
    return max(whole, key=lambda path: int(path.stem.split('_')[-1]), default=None)


def resume_latest(cfg: Config) -> None:
    """Have a training go on from the newest whole checkpoint in its work dir.

    mmengine's own search trusts a file that names the last one, which may have been cut off or,
    where a single one is kept, deleted before it was replaced.

    Raises:
        FileNotFoundError: If there has been one, and none is left.
    """
    cfg.resume, newest = True, last_checkpoint(cfg.work_dir)
    cfg.load_from = newest and str(newest)
    named = find_latest_checkpoint(cfg.work_dir) if newest is None else None
    if named and not fileio.exists(named):
        best = ', '.join(str(path) for path in sorted(Path(cfg.work_dir).glob('best_*.pth')))
        raise FileNotFoundError(
            f'--resume: {named}, the last checkpoint, is gone, as after a stop while it was '
            f'written. Go on from another by --resume PATH{f", such as {best}" if best else ""}'
        )


def best_checkpoint(runner: Runner) -> str | None:
    """Return the checkpoint that ``CheckpointHook(save_best=…)`` kept, the first if several."""
    for hook in runner.hooks:
        if isinstance(hook, CheckpointHook):
            if getattr(hook, 'best_ckpt_path', None):
                return hook.best_ckpt_path
            kept = getattr(hook, 'best_ckpt_path_dict', {}).values()
            return next((path for path in kept if path), None)
    return None
