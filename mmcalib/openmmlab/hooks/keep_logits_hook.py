"""The hook that keeps the logits of a classifier for metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn

from mmcalib.errors import UserError
from mmcalib.openmmlab.heads import innermost_model


@HOOKS.register_module()
class KeepLogitsHook(Hook):
    """Hook that adds the output of a classifier's head to its data samples, as ``logits``.

    It does so in validations and tests, since mmpretrain's samples have only the softmax.
    :class:`~mmcalib.openmmlab.metrics.OODMetric` requires logits for the scores ``'max_logit'`` and
    ``'energy'``; a segmentor's samples have their logits anyway. It is for mmpretrain's
    classifiers, without test-time augmentation.

    Raises:
        AttributeError: Before evaluating, if the model has no head.
        ValueError: While evaluating, if the head returns anything but one tensor with a row for
            each sample.
    """

    def before_val(self, runner: Runner) -> None:
        model = innermost_model(runner.model)
        self._logits = None
        self._handles = [
            model.head.register_forward_hook(self._keep_logits),
            model.register_forward_hook(self._add_to_samples),
        ]

    def after_val(self, runner: Runner) -> None:
        for handle in self._handles:
            handle.remove()

    before_test = before_val
    after_test = after_val

    def _keep_logits(self, head: nn.Module, inputs: tuple, output: Any) -> None:
        self._logits = output

    def _add_to_samples(self, model: nn.Module, inputs: tuple, output: Sequence) -> None:
        logits = self._logits
        self._logits = None
        if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(output):
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise UserError(
                f'KeepLogitsHook: the head returned {shape} for {len(output)} samples, not (N, K) '
                'logits'
            )
        for sample, sample_logits in zip(output, logits.detach(), strict=True):
            sample.logits = sample_logits
