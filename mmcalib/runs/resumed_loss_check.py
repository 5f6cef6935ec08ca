"""Refuses to go on with a training under another loss."""

from __future__ import annotations

from mmengine.config import Config

from mmcalib.checks import UserError
from mmcalib.record import loss_label
from mmcalib.runs.checkpoint_io import read_meta
from mmcalib.runs.loss_config import main_loss
from mmcalib.runs.training_fingerprint import comparable
from mmcalib.runs.training_record import facts_in


def check_resumed_loss(cfg: Config) -> None:
    """Raise a UserError if the training that is to be resumed has another main loss.

    Its result would stand in the row of the new loss, however few epochs that one has had.
    """
    path = cfg.get('load_from')
    if not cfg.get('resume') or not path or '://' in path:
        return
    before, now = (facts_in(read_meta(path)) or {}).get('loss'), main_loss(cfg)
    if before and now and comparable(before) != comparable(now):
        raise UserError(
            f'{path} is from a training with {loss_label(before)}, and this config has '
            f'{loss_label(now)}: resume it with its own loss, or start anew in another --work-dir, '
            f'from its weights if you like (--cfg-options load_from={path})'
        )
