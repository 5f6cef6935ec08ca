"""The ``meta`` of the checkpoints of a run."""

from __future__ import annotations

from mmengine.hooks import Hook
from mmengine.runner import Runner

# In `meta` of a checkpoint: what was trained.
TRAINING = 'training'


class CheckpointMeta(Hook):
    """Keeps the ``meta`` of the last loaded checkpoint, and writes that of new ones.

    Args:
        training: What is being trained, for ``meta['training']``; see
            :func:`~mmcalib.runs.training_record.training_facts`.
    """

    # Before others read it.
    priority = 'HIGHEST'

    def __init__(self, training: dict) -> None:
        self.training = training
        self.meta: dict = {}

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self.meta = checkpoint.get('meta') or {}
        if runner._resume and TRAINING in self.meta:
            # A training that is resumed still started from what it first started from.
            earlier = self.meta[TRAINING]['parts']['initial_weights']
            self.training['parts']['initial_weights'] = earlier

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        checkpoint['meta'][TRAINING] = self.training
