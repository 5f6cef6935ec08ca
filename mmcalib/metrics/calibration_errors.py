"""Calibration errors, parts of a Brier score and of an NLL, out of what ``counts.py`` counts.

Tables are ``(…, 3, B)``: count, correct, sum of confidences. They give as many values, ``(…)``, in
float64, NaN for a table without predictions.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mmcalib.metrics.bins import equal_mass_bins, merge_equal_confidences
from mmcalib.metrics.outcomes import BETAS

# Of the smooth ECE: points of a grid, a power of two and one more, whose steps are far below any
# width that is measured, and halvings of the width.
GRID, HALVINGS = (1 << 12) + 1, 40


def calibration_error(table: Tensor) -> Tensor:
    r"""Return the expected calibration error, ECE, in percent; over equal-mass bins, AECE.

    .. math:: \sum_b \frac{n_b}{n} \left| \mathrm{acc}_b - \mathrm{conf}_b \right|

    Source: Eq. 8 of the paper.
    """
    count, correct, conf = _rows(table)
    return 100 * (correct - conf).abs().sum(-1) / count.sum(-1)


def adaptive_error(table: Tensor, num_bins: int) -> Tensor:
    """Return the calibration error over bins of equal count, AECE, in percent, of cells."""
    return calibration_error(equal_mass_bins(merge_equal_confidences(table), num_bins))


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


def smooth_error(table: Tensor) -> Tensor:
    r"""Return the smooth ECE, in percent: the :math:`\sigma` that equals the error it leaves.

    The residuals of each bin are put on a grid of 4,097 points, between the two next to its mean;
    the kernel is that of heat on a rod, so it multiplies the k-th cosine by
    :math:`\exp(-(\pi k \sigma)^2 / 2)`. NaN without predictions.

    .. math:: \sigma = \int_0^1 \Big| \frac1N \sum_i (y_i - p_i) K_\sigma(t, p_i) \Big| \, dt

    for correctness :math:`y_i` and confidence :math:`p_i`, and a Gaussian kernel, reflected at 0
    and 1.

    Source: Błasiok and Nakkiran, Smooth ECE: Principled Reliability Diagrams via Kernel Smoothing,
    ICLR 2024, Definitions 3 and 4.

    Args:
        table: ``(3, C)`` table of bins, ascending in confidence: count, correct, sum of
            confidences.
    """
    if not table[0].sum():
        return torch.tensor(torch.nan, dtype=torch.float64, device='cpu')
    waves = _waves(table)
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        sigma = (low + high) / 2
        low, high = (sigma, high) if _error_at(waves, sigma) > sigma else (low, sigma)
    return torch.tensor(100 * (low + high) / 2, dtype=torch.float64, device='cpu')


def _waves(table: Tensor) -> Tensor:
    """Return the Fourier coefficients of the mirrored residuals, as shares of all predictions."""
    table = table[:, table[0] > 0].double()
    count, correct, conf = table
    place = (conf / count).clamp(0, 1) * (GRID - 1)
    below = place.floor().clamp(max=GRID - 2)
    upper = (correct - conf) / count.sum() * (place - below)
    lower = (correct - conf) / count.sum() - upper
    residuals = torch.zeros(GRID, dtype=torch.float64, device='cpu')
    residuals.index_add_(0, below.long(), lower).index_add_(0, below.long() + 1, upper)
    # Ends are their own mirror images, so they hold twice what lies on them.
    residuals[0] *= 2
    residuals[-1] *= 2
    return torch.fft.rfft(torch.cat([residuals, residuals[1:-1].flip(0)]))


def _error_at(waves: Tensor, sigma: float) -> float:
    k = torch.arange(len(waves), dtype=torch.float64, device='cpu')
    smooth = torch.fft.irfft(waves * torch.exp(-((math.pi * k * sigma) ** 2) / 2), 2 * (GRID - 1))
    # By the trapezoidal rule, the two ends count half: the mean over the whole mirrored circle.
    return smooth.abs().mean().item() * (GRID - 1)


def least_nll(curve: Tensor, count: float) -> float:
    r"""Return the NLL at the best temperature, in nats, which no temperature removes.

    .. math:: \min_{T \in [1/16, 16]} \frac1N \sum_i \mathrm{NLL}_i(T)

    of all predictions: the temperature is one number, so it is too good for them by about
    1 / (2 N) nats.

    Source: Berta, Holzmüller, Jordan and Bach, Rethinking Early Stopping: Refine, Then Calibrate,
    arXiv:2501.19195; they take the temperature of a part of the predictions from the others.

    Args:
        curve: ``(33,)`` sums of the NLL at each of ``BETAS``.
        count: N.
    """
    return _least(curve)[1] / count


def removable_nll(curve: Tensor, count: float) -> float:
    """Return the NLL less :func:`least_nll`, in nats: the part that a temperature removes."""
    return curve[BETAS.index(1.0)].item() / count - least_nll(curve, count)


def temperature(curve: Tensor, count: float) -> float:
    """Return the temperature of the least NLL: above 1 the predictions are over-confident."""
    return math.exp(-_least(curve)[0])


def _least(curve: Tensor) -> tuple[float, float]:
    """Return where in log β a cubic spline through the curve is least, and its value there."""
    from scipy.interpolate import CubicSpline  # takes a moment to import, and few need it

    places = np.log(BETAS)
    spline = CubicSpline(places, curve.double().numpy())
    inner = spline.derivative().roots(extrapolate=False)
    found = [(max(float(spline(place)), 0.0), -place) for place in (*places, *inner)]
    value, place = min(found)  # of equals the sharpest, as where all are right
    return -place, value
