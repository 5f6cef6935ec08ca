"""What the checkpoint of a run says of itself."""

from __future__ import annotations

from mmengine.hooks import Hook
from mmengine.runner import Runner


class CheckpointMeta(Hook):
    """Keeps what the checkpoint that was loaded last says of itself."""

    def __init__(self) -> None:
        self.meta: dict = {}

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self.meta = checkpoint.get('meta') or {}
