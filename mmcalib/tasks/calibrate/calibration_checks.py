"""Checks before a calibration: each refuses or, by force, leaves a note in the checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mmengine.config import Config

from mmcalib.datasets.same_data import same_data
from mmcalib.runs.training_record import CALIBRATION
from mmcalib.work_dir import check_writable

if TYPE_CHECKING:
    from mmcalib.tasks.calibrate.calibrate_checkpoint import CalibrationOptions

HELD_OUT = (
    'Fit on images that no test uses: leave out --split test. With --force it fits, and the '
    'checkpoint records it'
)


def check_splits(cfg: Config, options: CalibrationOptions) -> list[str]:
    """Return the reasons why a forced calibration may mislead, judged by the config.

    Args:
        cfg: Of the run.
        options: See :class:`~mmcalib.tasks.calibrate.calibrate_checkpoint.CalibrationOptions`.

    Raises:
        ValueError: If the config lacks a split, or there is such a reason and it is not forced.
    """
    split, force = options.split, options.force
    for name in [split, *(['test'] if options.test else [])]:
        if cfg.get(f'{name}_dataloader') is None:
            raise ValueError(f'the config has no {name}_dataloader')
    if split == 'test':
        return [_refuse('fitted on the test split', HELD_OUT, force=force)]
    if not options.cross_fit and same_data(cfg.val_dataloader, cfg.get('test_dataloader')):
        reason = "fitted on the validation split, which is the config's test split as well"
        return [_refuse(reason, HELD_OUT, force=force)]
    return []


def check_out(out: str, config: str, checkpoint: str, *, overwrite: bool) -> None:
    """Raise an error if writing a file, or the config beside it, would lose another.

    Raises:
        ValueError: If one is the config or the checkpoint to read, by whatever name; a folder; or
            there, unless `overwrite`; if both have the same path.
        OSError: If nothing can be written there.
    """
    if os.path.isdir(out):
        raise ValueError(f'--out {out} is a folder: name a file in it')
    beside = config_beside(out)
    if beside == str(Path(out)):
        raise ValueError(f'--out {out} is the name of a config: name a .pth file')
    for file in (out,) if out.endswith('.json') else (out, beside):  # a temperature is alone
        for read, what in ((checkpoint, 'checkpoint'), (config, 'config')):
            if os.path.exists(file) and os.path.exists(read) and os.path.samefile(file, read):
                raise ValueError(f'--out {out}: {file} is the {what} itself: name another file')
        if os.path.exists(file) and not overwrite:
            raise ValueError(f'--out {file} exists: name another file, or add --overwrite')
    check_writable(out)


def config_beside(out: str) -> str:
    """Return the path of the config of an attached calibration."""
    return str(Path(out).with_suffix('.py'))


def check_not_calibrated(meta: Mapping, *, force: bool) -> list[str]:
    """Return why it misleads to calibrate a checkpoint of this ``meta``.

    Raises:
        ValueError: If it has been calibrated before, and this is not forced.
    """
    earlier = meta.get(CALIBRATION)
    if not earlier:
        return []
    if earlier.get('attached'):
        raise ValueError(
            f'the checkpoint has an attached scaling ({earlier["method"]}), which takes no other '
            f'on top, even with --force: calibrate the original, {earlier["checkpoint"]}'
        )
    hint = (
        f'It holds a {earlier["method"]} scaling, fitted on {earlier["split"]} at '
        f'{earlier["date"]}: use the original, {earlier["checkpoint"]}; or --force, which puts '
        'another scaling on top; the checkpoint then records both'
    )
    return [_refuse('calibrated before', hint, force=force)]


def _refuse(reason: str, hint: str, *, force: bool) -> str:
    if not force:
        raise ValueError(f'refused: {reason}. {hint}')
    return reason
