"""A classifier's logits, of which mmpretrain leaves metrics only the softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn

from mmcalib.errors import UserError


@HOOKS.register_module()
class KeepLogitsHook(Hook):
    """Add the output of a classifier's head to its data samples, as ``logits``.

    In validations and tests. :class:`~mmcalib.openmmlab.metrics.OODMetric` needs them for the
    scores ``'max_logit'`` and ``'energy'``; a segmentor's samples have their logits anyway. It is
    for mmpretrain's classifiers, without test-time augmentation.

    Raises:
        AttributeError: Before evaluating, if the model has no head.
        ValueError: While evaluating, if the head returns anything but one tensor with a row for
            each sample.
    """

    def before_val(self, runner: Runner) -> None:
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        self._logits = None
        self._handles = [
            model.head.register_forward_hook(self._keep),
            model.register_forward_hook(self._give),
        ]

    def after_val(self, runner: Runner) -> None:
        for handle in self._handles:
            handle.remove()

    before_test, after_test = before_val, after_val

    def _keep(self, head: nn.Module, inputs: tuple, output: Any) -> None:
        self._logits = output

    def _give(self, model: nn.Module, inputs: tuple, output: Sequence) -> None:
        logits, self._logits = self._logits, None
        if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(output):
            what = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise UserError(
                f'KeepLogitsHook: the head returned {what} for {len(output)} samples, not (N, K) '
                'logits'
            )
        for sample, row in zip(output, logits.detach(), strict=True):
            sample.logits = row
