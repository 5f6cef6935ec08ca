"""One model on all processes of a training: the buffers that each computes from its own batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from mmengine.dist import all_reduce, broadcast, get_world_size
from mmengine.hooks import CheckpointHook, Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn


@HOOKS.register_module()
class SameBuffersHook(Hook):
    """Synchronise buffers over processes before a model is validated or saved.

    Each process updates the statistics of batch normalisation from its own batches, and the
    checkpoint holds those of the first, so a validation on several processes would be of other
    models than the one that is saved. Their floating-point buffers become the mean over
    processes, others, such as counters, those of the first. An average of the
    weights, as of ``EMAHook``, is treated alike. On one process, and for SyncBN, nothing changes.

    mmengine's ``SyncBuffersHook`` does this for epochs only, and sums bytes beyond 255. Our tools
    add this one to every distributed training.
    """

    # After all that changes buffers, before CheckpointHook.
    priority = 'LOW'

    def after_train_epoch(self, runner: Runner) -> None:
        self._share(runner)

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch=None, outputs: dict | None = None
    ) -> None:
        for hook in runner.hooks:
            if isinstance(hook, CheckpointHook) and not hook.by_epoch:
                due = hook.every_n_train_iters(runner, hook.interval, hook.save_begin)
                if due or (hook.save_last and hook.is_last_train_iter(runner)):
                    return self._share(runner)

    def before_val_epoch(self, runner: Runner) -> None:
        self._share(runner)

    def _share(self, runner: Runner) -> None:
        if get_world_size() < 2:
            return
        averages = [getattr(hook, 'ema_model', None) for hook in runner.hooks]
        for model in [runner.model, *averages]:
            if model is not None:
                share_buffers(buffers_of_each_process(model))


def buffers_of_each_process(model: nn.Module) -> Iterator[Tensor]:
    """Yield the buffers that belong to a model's state and are not SyncBN's, which are shared."""
    for module in model.modules():
        if type(module).__name__ != 'SyncBatchNorm':
            for name, buffer in module.named_buffers(recurse=False):
                if name not in module._non_persistent_buffers_set and buffer.numel():
                    yield buffer


def share_buffers(buffers: Iterable[Tensor]) -> None:
    """Set buffers to the mean over processes, those that are not floating to the first's."""
    floating = []
    for buffer in buffers:
        if buffer.is_floating_point():
            floating.append(buffer)
        elif buffer.dtype == torch.bool:  # not known to every backend
            first = buffer.byte()
            broadcast(first)
            buffer.copy_(first)
        else:
            broadcast(buffer)
    if not floating:
        return
    # In float64, where the mean of equal values of single precision is that value.
    mean = torch.cat([buffer.flatten().double() for buffer in floating])
    all_reduce(mean, op='mean')
    for buffer, part in zip(floating, mean.split([b.numel() for b in floating]), strict=True):
        buffer.copy_(part.view_as(buffer))
