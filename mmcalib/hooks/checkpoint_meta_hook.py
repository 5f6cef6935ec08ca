"""What the checkpoints of a run say of themselves."""

from __future__ import annotations

from collections.abc import Mapping

from mmengine.hooks import Hook
from mmengine.runner import Runner

# In `meta` of a checkpoint: what was trained.
TRAINED = 'trained'


class CheckpointMeta(Hook):
    """Keeps what the checkpoint that was loaded last says of itself, and writes into new ones.

    Args:
        trained: What is being trained, for ``meta['trained']``.
    """

    # Before others read it.
    priority = 'HIGHEST'

    def __init__(self, trained: dict) -> None:
        self.trained = trained
        self.meta: dict = {}

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self.meta = checkpoint.get('meta') or {}
        earlier = self.meta.get(TRAINED)
        if runner._resume and isinstance(earlier, Mapping):
            # A training that is resumed still started from what it first started from.
            self.trained['initial_weights'] = earlier.get('initial_weights')

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        checkpoint['meta'][TRAINED] = self.trained
