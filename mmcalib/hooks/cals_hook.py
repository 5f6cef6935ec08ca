"""Multipliers of class-adaptive label smoothing, learnt from each validation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from mmengine.registry import HOOKS
from torch import Tensor

from mmcalib.hooks.validation_learning_hook import ValidationLearningHook
from mmcalib.losses import CALSLoss
from mmcalib.samples.reading import Sample, read_logits
from mmcalib.samples.writing import logits_in


@HOOKS.register_module()
class CALSHook(ValidationLearningHook):
    """Update the multipliers of every ``CALSLoss`` after each validation during training.

    Logged are ``train/multiplier_mean``, ``train/multiplier_max`` and ``train/rho``, of the last
    such loss. What :class:`ValidationLearningHook` says of samples, processes and resuming holds.

    Args:
        ignore_index: Label of the pixels to leave out. Classifiers do not use it.

    Raises:
        ValueError: Before training, if the model has no ``CALSLoss``, or the run no validation;
            at a validation, if its predictions are of another number of classes.
    """

    loss_type = CALSLoss

    def measure(self, loss: CALSLoss, sample: Sample, name: str) -> Tensor:
        logits = logits_in(sample)
        if len(logits) != loss.num_classes:
            raise ValueError(
                f'the validation predicts {len(logits)} classes of {name}, but CALSLoss has '
                f'num_classes={loss.num_classes}: set num_classes={len(logits)}'
            )
        logits, _, _ = read_logits(sample, logits, ignore_index=self.ignore_index, name=name)
        return loss.statistics(logits)

    def update(self, loss: CALSLoss, measured: Sequence[Tensor]) -> dict[str, float]:
        loss.update(torch.stack(measured).sum(dim=0))
        return {
            'multiplier_mean': loss.multipliers.mean().item(),
            'multiplier_max': loss.multipliers.max().item(),
            'rho': loss.rho.item(),
        }
