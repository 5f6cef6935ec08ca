"""The checkpoint that a run reads: a whole file, the newest, the best."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

from mmengine.config import Config
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner, find_latest_checkpoint

from mmcalib.cli.files import other_checkpoints

LAST_WEIGHTS = 'last weights'


def which_checkpoint(path: str | Path, length: Mapping[str, int]) -> str | None:
    """Return the role of a checkpoint in its training, by its name.

    Args:
        path: Of the file, or :data:`LAST_WEIGHTS`.
        length: Of the training, ``{'epochs': n}`` or ``{'iterations': n}``.

    Returns:
        ``'best'``, ``'last'``, ``'epoch 3'`` or ``'iteration 800'``; None of another name.
    """
    name = os.path.basename(path)
    if name.startswith('best'):
        return 'best'
    found = re.fullmatch(r'(epoch|iter)_(\d+)\.pth', name)
    unit = {'epoch': 'epoch', 'iter': 'iteration'}[found[1]] if found else None
    if name == LAST_WEIGHTS or (found and int(found[2]) == length.get(f'{unit}s')):
        return 'last'
    return f'{unit} {int(found[2])}' if found else None


def check_checkpoint(path: str) -> None:
    """Raise an error if a local checkpoint is not there, is damaged, or is something else."""
    if '://' in path:
        return
    if not os.path.isfile(path):
        others = other_checkpoints(path)
        raise FileNotFoundError(f'there is no checkpoint {path!r} in {os.getcwd()}{others}')
    reason = damage(path)
    if reason:
        raise ValueError(f'{path!r} is not a readable checkpoint: {reason}')


def damage(path: str | Path) -> str | None:
    """Return the reason why a local file is no whole checkpoint, None if it is one.

    A zip file ends with its index, which one that was cut off does not have.
    """
    with open(path, 'rb') as file:
        start = file.read(2)
        if start[:1] == b'\x80' or zipfile.is_zipfile(file):  # \x80: PyTorch before 1.6
            return None
    return 'it was not written to its end' if start == b'PK' else 'it is another kind of file'


def last_checkpoint(folder: str | Path) -> Path | None:
    """Return the checkpoint that a training wrote last, None without any.

    That is the one which ``last_checkpoint`` names, by its name in this folder, since this may be a
    copy; where it is gone or damaged, the whole one of the highest number.
    """
    file = Path(folder, 'last_checkpoint')
    named = Path(folder, Path(file.read_text().strip()).name) if file.is_file() else None
    if named and named.is_file() and damage(named) is None:
        return named
    paths = [path for kind in ('epoch', 'iter') for path in Path(folder).glob(f'{kind}_*.pth')]
    paths = [path for path in paths if path.is_file() and path.stem.split('_')[-1].isdigit()]
    paths.sort(key=lambda path: int(path.stem.split('_')[-1]), reverse=True)
    return next((path for path in paths if damage(path) is None), None)


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
    if named:
        best = ', '.join(str(path) for path in sorted(Path(cfg.work_dir).glob('best_*.pth')))
        others = f', such as {best}, which has no state of the optimizer' if best else ''
        raise FileNotFoundError(
            f'--resume: {named}, the last checkpoint, is missing or damaged, as after a stop while '
            f'it was written. Resume from another with --resume PATH{others}'
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
