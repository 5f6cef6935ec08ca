"""What else bins of confidence tell: estimates of a calibration error, and parts of a Brier score.

Tables may have leading dimensions, ``(…, 3, B)``, and give as many values, ``(…)``, in float64. All
are NaN for a table without predictions.
"""

from __future__ import annotations

import torch
from torch import Tensor


def binned_debiased_error(table: Tensor) -> Tensor:
    r"""Return the debiased root mean square calibration error, in percent.

    .. math:: \sqrt{\max\Big(0, \sum_b \frac{n_b}{n} \Big[ (\mathrm{acc}_b - \mathrm{conf}_b)^2
        - \frac{\mathrm{acc}_b (1 - \mathrm{acc}_b)}{n_b - 1} \Big]\Big)}

    The noise of a bin's accuracy adds to its squared gap what is subtracted here, if predictions
    are independent; neighbouring pixels are not. Bins of one prediction are left out.

    Source: Kumar, Liang and Ma, Verified Uncertainty Calibration, NeurIPS 2019, Definition 5.2.

    Args:
        table: ``(…, 3, B)``: count, correct, sum of confidences.
    """
    count, correct, conf = table.double().unbind(-2)
    accuracy = correct / count.clamp(min=1)
    noise = accuracy * (1 - accuracy) / (count - 1).clamp(min=1)
    squares = ((correct - conf) / count.clamp(min=1)).square() - noise
    mean = (torch.where(count > 1, count, 0) * squares).sum(-1) / count.sum(-1)
    return 100 * mean.clamp(min=0).sqrt()


def binned_average_error(table: Tensor) -> Tensor:
    r"""Return the mean gap of the bins that are not empty, each alike, in percent.

    .. math:: \frac{1}{\#\{b : n_b > 0\}} \sum_{b : n_b > 0}
        \left| \mathrm{acc}_b - \mathrm{conf}_b \right|

    netcal and MONAI call it ACE. It is not the adaptive error, AECE, whose bins hold equally many
    predictions: here a bin of one prediction weighs as much as one of a million.

    Source: Neumann, Zisserman and Vedaldi, Relaxed Softmax: Efficient Confidence Auto-Calibration
    for Safe Pedestrian Detection, 2018.

    Args:
        table: ``(…, 3, B)``: count, correct, sum of confidences.
    """
    count, correct, conf = table.double().unbind(-2)
    gaps = (correct - conf).abs() / count.clamp(min=1)
    return 100 * gaps.sum(-1) / (count > 0).sum(-1)


def binned_reliability(table: Tensor) -> Tensor:
    r"""Return the reliability of confidence, from bins; 0 is the best, 1 the worst.

    .. math:: \sum_b \frac{n_b}{n} (\mathrm{acc}_b - \mathrm{conf}_b)^2

    Reliability - resolution + uncertainty is the Brier score of the confidence as a forecast of
    being right, if all confidences of a bin are its mean. No other Brier score: not that of
    ``Brier``, which sums over classes. Not in percent.

    Source: Murphy, A New Vector Partition of the Probability Score, 1973.

    Args:
        table: ``(…, 3, B)``: count, correct, sum of confidences.
    """
    count, correct, conf = table.double().unbind(-2)
    return ((correct - conf).square() / count.clamp(min=1)).sum(-1) / count.sum(-1)


def binned_resolution(table: Tensor) -> Tensor:
    r"""Return how far the accuracies of bins lie from their mean; 0.25 is the most, and the best.

    .. math:: \sum_b \frac{n_b}{n} (\mathrm{acc}_b - \mathrm{acc})^2

    Arguments and source are those of :func:`binned_reliability`.
    """
    count, correct, _ = table.double().unbind(-2)
    mean = correct.sum(-1, keepdim=True) / count.sum(-1, keepdim=True)
    gaps = correct - count * mean
    return (gaps.square() / count.clamp(min=1)).sum(-1) / count.sum(-1)


def binned_uncertainty(table: Tensor) -> Tensor:
    r"""Return :math:`\mathrm{acc} (1 - \mathrm{acc})`, which no confidence can change.

    Arguments and source are those of :func:`binned_reliability`.
    """
    count, correct, _ = table.double().unbind(-2)
    mean = correct.sum(-1) / count.sum(-1)
    return mean * (1 - mean)
