"""Calibration errors and parts of a Brier score, out of the tables that ``counts.py`` counts.

Tables are ``(…, 3, B)``: count, correct, sum of confidences. They give as many values, ``(…)``, in
float64, NaN for a table without predictions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.metrics.counts import by_confidence, equal_mass


def calibration_error(table: Tensor) -> Tensor:
    r"""Return the expected calibration error, ECE, in percent; over equal-mass bins, AECE.

    .. math:: \sum_b \frac{n_b}{n} \left| \mathrm{acc}_b - \mathrm{conf}_b \right|

    Source: Eq. 8 of the paper.
    """
    count, correct, conf = _rows(table)
    return 100 * (correct - conf).abs().sum(-1) / count.sum(-1)


def adaptive_error(table: Tensor, num_bins: int) -> Tensor:
    """Return the calibration error over bins of equal count, AECE, in percent, of cells."""
    return calibration_error(equal_mass(by_confidence(table), num_bins))


def maximum_error(table: Tensor) -> Tensor:
    r"""Return :math:`\max_b |\mathrm{acc}_b - \mathrm{conf}_b|` over non-empty bins, in percent."""
    count, correct, conf = _rows(table)
    gaps = (correct - conf).abs() / count.clamp(min=1)
    return 100 * torch.where(count.sum(-1) > 0, gaps.amax(-1), torch.nan)


def root_mean_square_error(table: Tensor) -> Tensor:
    """Return the root of :func:`reliability`, RMSCE, in percent."""
    return 100 * reliability(table).sqrt()


def overconfidence_error(table: Tensor) -> Tensor:
    r"""Return the over-confidence error, in percent.

    .. math:: \sum_b \frac{n_b}{n} \mathrm{conf}_b \max(\mathrm{conf}_b - \mathrm{acc}_b, 0)

    Source: Thulasidasan et al., On Mixup Training, 2019.
    """
    count, correct, conf = _rows(table)
    surplus = conf / count.clamp(min=1) * (conf - correct).clamp(min=0)
    return 100 * surplus.sum(-1) / count.sum(-1)


def debiased_error(table: Tensor) -> Tensor:
    r"""Return the debiased root mean square calibration error, in percent.

    .. math:: \sqrt{\max\Big(0, \sum_b \frac{n_b}{n} \Big[ (\mathrm{acc}_b - \mathrm{conf}_b)^2
        - \frac{\mathrm{acc}_b (1 - \mathrm{acc}_b)}{n_b - 1} \Big]\Big)}

    The noise of a bin's accuracy adds to its squared gap what is subtracted here, if predictions
    are independent; neighbouring pixels are not. Bins of one prediction are left out.

    Source: Kumar, Liang and Ma, Verified Uncertainty Calibration, NeurIPS 2019, Definition 5.2.
    """
    count, correct, conf = _rows(table)
    accuracy = correct / count.clamp(min=1)
    noise = accuracy * (1 - accuracy) / (count - 1).clamp(min=1)
    squares = ((correct - conf) / count.clamp(min=1)).square() - noise
    mean = (torch.where(count > 1, count, 0) * squares).sum(-1) / count.sum(-1)
    return 100 * mean.clamp(min=0).sqrt()


def average_error(table: Tensor) -> Tensor:
    """Return the mean gap of the bins that are not empty, ACE, in percent.

    A bin of one prediction weighs as much as one of a million. netcal and MONAI call it ACE; it is
    not the adaptive error, AECE.

    Source: Neumann, Zisserman and Vedaldi, Relaxed Softmax: Efficient Confidence
    Auto-Calibration for Safe Pedestrian Detection, 2018.
    """
    count, correct, conf = _rows(table)
    gaps = (correct - conf).abs() / count.clamp(min=1)
    return 100 * gaps.sum(-1) / (count > 0).sum(-1)


def reliability(table: Tensor) -> Tensor:
    r"""Return the reliability of confidence; 0 is the best, 1 the worst.

    .. math:: \sum_b \frac{n_b}{n} (\mathrm{acc}_b - \mathrm{conf}_b)^2

    Source: Murphy, A New Vector Partition of the Probability Score, 1973.
    """
    count, correct, conf = _rows(table)
    return ((correct - conf).square() / count.clamp(min=1)).sum(-1) / count.sum(-1)


def resolution(table: Tensor) -> Tensor:
    r"""Return the resolution of confidence; 0.25 is the most, and the best.

    .. math:: \sum_b \frac{n_b}{n} (\mathrm{acc}_b - \mathrm{acc})^2
    """
    count, correct, _ = _rows(table)
    mean = correct.sum(-1, keepdim=True) / count.sum(-1, keepdim=True)
    gaps = correct - count * mean
    return (gaps.square() / count.clamp(min=1)).sum(-1) / count.sum(-1)


def uncertainty(table: Tensor) -> Tensor:
    r"""Return :math:`\mathrm{acc} (1 - \mathrm{acc})`, which no confidence can change."""
    count, correct, _ = _rows(table)
    mean = correct.sum(-1) / count.sum(-1)
    return mean * (1 - mean)


def accuracy(table: Tensor) -> Tensor:
    """Return the share of correct predictions of a ``(…, 3, B)`` table, in percent."""
    count, correct, _ = _rows(table)
    return 100 * correct.sum(-1) / count.sum(-1)


def confidence(table: Tensor) -> Tensor:
    """Return the mean confidence of a ``(…, 3, B)`` table, in percent."""
    count, _, conf = _rows(table)
    return 100 * conf.sum(-1) / count.sum(-1)


def gap(table: Tensor) -> Tensor:
    """Return mean confidence less accuracy, in percent points: above 0 is over-confident.

    Its size is at most the ECE, and noise does not bias it. Over- and under-confident predictions
    cancel.
    """
    count, correct, conf = _rows(table)
    return 100 * (conf - correct).sum(-1) / count.sum(-1)


def classwise_error(table: Tensor) -> Tensor:
    r"""Return the class-wise ECE, in percent, of a ``(3, K, B)`` table: the mean over classes.

    .. math:: \frac1K \sum_k \sum_b \frac{n_{bk}}{n} \left| \mathrm{freq}_{bk} - p_{bk} \right|
    """
    return calibration_error(table.movedim(0, 1)).mean()


def _rows(table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return table.double().unbind(-2)
