"""One model on all processes of a validation: that of the first, which is saved."""

from __future__ import annotations

import torch
from mmengine.dist import broadcast, get_world_size
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner


@HOOKS.register_module()
class SameBuffersHook(Hook):
    """Give all processes the buffers of the first before a validation, as its checkpoint has them.

    Each process updates the statistics of batch normalisation from its own batches, so a validation
    on several processes would be of other models than the one that is saved. On one process, and
    for SyncBN, nothing changes. Our tools add this hook to every distributed training.
    """

    priority = 'LOW'  # after EMAHook has put the average there

    def before_val_epoch(self, runner: Runner) -> None:
        for buffer in runner.model.buffers() if get_world_size() > 1 else ():
            # gloo knows no booleans
            first = buffer.byte() if buffer.dtype == torch.bool else buffer
            broadcast(first)
            buffer.copy_(first)
