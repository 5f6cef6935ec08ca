"""Factors of adaptive focal loss, learnt from each validation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from mmengine.registry import HOOKS
from torch import Tensor

from mmcalib.hooks.validation_learning_hook import ValidationLearningHook
from mmcalib.losses import AdaFocalLoss
from mmcalib.metrics.counts import Counts, by_confidence, equal_mass, of_map, of_probabilities
from mmcalib.samples.reading import Sample, class_label, class_probabilities, read_pixels


@HOOKS.register_module()
class AdaFocalHook(ValidationLearningHook):
    """Update the gammas of every ``AdaFocalLoss`` after each validation during training.

    Logged are ``train/gamma_min`` and ``train/gamma_max``, over the bins of the last such loss.
    What :class:`ValidationLearningHook` says of samples, processes and resuming holds.

    Args:
        ignore_index: Label of the pixels to leave out. Classifiers do not use it.

    Raises:
        ValueError: Before training, if the model has no ``AdaFocalLoss``, or the run no validation.
    """

    loss_type = AdaFocalLoss

    def measure(self, loss: AdaFocalLoss, sample: Sample, name: str) -> Counts:
        if 'seg_logits' in sample:
            maps = read_pixels(sample, ignore_index=self.ignore_index, name=name)
            return Counts.of(of_map(*maps, maps[-1] != self.ignore_index, name=name)).round()
        label = class_label(sample, name)
        return Counts.of(of_probabilities(class_probabilities(sample, name).T, label))

    def update(self, loss: AdaFocalLoss, measured: Sequence[Counts]) -> dict[str, float]:
        counts = Counts.total(measured)
        if counts.count:
            loss.update(*edges_and_gaps(by_confidence(counts.table), loss.num_bins))
        return {'gamma_min': loss.gammas.min().item(), 'gamma_max': loss.gammas.max().item()}


def edges_and_gaps(table: Tensor, num_bins: int) -> tuple[list[float], list[float]]:
    """Return the lowest confidence of all bins of equal count but the first, and all gaps.

    Args:
        table: ``(3, C)`` of at least one confidence, ascending.
        num_bins: B.

    Returns:
        B - 1 edges, ascending, and B differences of mean confidence and accuracy, as shares.
    """
    count, correct, conf = equal_mass(table, num_bins)
    mass = table[0].cumsum(0)
    positions = mass[-1] * torch.arange(1, num_bins, dtype=torch.float64) / num_bins
    first = torch.searchsorted(mass, positions, right=True)
    return (table[2] / table[0])[first].tolist(), ((conf - correct) / count).tolist()
