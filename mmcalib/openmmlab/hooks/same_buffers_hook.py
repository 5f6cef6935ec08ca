"""The hook that validates one model on all processes: that of the first, which is saved."""

from __future__ import annotations

import torch
from mmengine.dist import broadcast, get_world_size
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner


@HOOKS.register_module()
class SameBuffersHook(Hook):
    """Hook that copies the buffers of the first process to all others before a validation.

    The checkpoint has the buffers of the first process. Each process updates the statistics of
    batch normalisation from its own batches, so a validation on several processes would be of other
    models than the one that is saved. On one process, and for SyncBN, nothing changes. The tools
    add this hook to every distributed training.
    """

    # EMAHook puts the averages into the model before.
    priority = 'LOW'

    def before_val_epoch(self, runner: Runner) -> None:
        if get_world_size() == 1:
            return
        for buffer in runner.model.buffers():
            # gloo does not know booleans.
            values = buffer.byte() if buffer.dtype == torch.bool else buffer
            broadcast(values)
            buffer.copy_(values)
