"""Factors of adaptive focal loss, learnt from each validation."""

from __future__ import annotations

import torch
from mmengine.registry import HOOKS

from mmcalib.hooks.validation_learning_hook import ValidationLearningHook
from mmcalib.losses import AdaFocalLoss
from mmcalib.metrics.bins.bin_tables import equal_mass_bins
from mmcalib.metrics.bins.narrow_bins import ConfidenceBins
from mmcalib.samples.evaluated import read_prediction
from mmcalib.samples.fields import Sample
from mmcalib.samples.predictions import Prediction


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

    def new_statistics(self, loss: AdaFocalLoss) -> ConfidenceBins:
        return ConfidenceBins()

    def measure(self, loss: AdaFocalLoss, sample: Sample, name: str) -> Prediction:
        return read_prediction(sample, ignore_index=self.ignore_index, name=name)

    def add(self, statistics: ConfidenceBins, measured: Prediction) -> None:
        statistics.add(measured.conf, measured.correct)

    def merge(self, statistics: ConfidenceBins, other: ConfidenceBins) -> None:
        statistics.merge(other)

    def update(self, loss: AdaFocalLoss, statistics: ConfidenceBins) -> dict[str, float]:
        if statistics.count:
            loss.update(*edges_and_gaps(statistics, loss.num_bins))
        return {'gamma_min': loss.gammas.min().item(), 'gamma_max': loss.gammas.max().item()}


def edges_and_gaps(narrow_bins: ConfidenceBins, num_bins: int) -> tuple[list[float], list[float]]:
    """Return the lowest confidence of all bins of equal count but the first, and all gaps.

    Args:
        narrow_bins: Of at least one confidence.
        num_bins: B.

    Returns:
        B - 1 edges, ascending, and B differences of mean confidence and accuracy, as shares.
    """
    table = narrow_bins.table()
    table = table[:, table[0] > 0]
    count, correct, conf = equal_mass_bins(table, num_bins)
    positions = narrow_bins.count * torch.arange(1, num_bins, dtype=torch.float64) / num_bins
    first = torch.searchsorted(table[0].cumsum(0), positions, right=True)
    return (table[2] / table[0])[first].tolist(), ((conf - correct) / count).tolist()
