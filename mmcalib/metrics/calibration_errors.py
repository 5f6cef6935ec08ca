"""Calibration errors, and parts of the Brier score and of the NLL, computed from counts.

A table is ``(…, 3, B)``: count, correct, sum of confidences of B bins. Values are ``(…)`` float64,
NaN for a table without predictions.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mmcalib.metrics.bins import equal_mass_bins, merge_equal_confidences
from mmcalib.metrics.outcomes import BETAS

# Points of the grid of the smooth ECE, a power of two and one more. Its steps are far below any
# width that is measured.
GRID_POINTS = (1 << 12) + 1
HALVINGS = 40  # halvings of the interval that holds the width of the smooth ECE


def calibration_error(table: Tensor) -> Tensor:
    r"""Return the expected calibration error, ECE, in percent; over equal-mass bins, AECE.

    .. math:: \sum_b \frac{n_b}{n} \left| \mathrm{acc}_b - \mathrm{conf}_b \right|

    Source: Eq. 8 of the paper.
    """
    count, correct, conf = _rows(table)
    return 100 * (correct - conf).abs().sum(-1) / count.sum(-1)


def adaptive_error(table: Tensor, num_bins: int) -> Tensor:
    """Return the calibration error of ``(3, C)`` fine bins over bins of equal count, in percent."""
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
    r"""Return the resolution of confidence; 0.25 is the largest value, and the best.

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


def largest_rate_gap(table: Tensor) -> Tensor:
    r"""Return the largest difference of a class's mean probability from its frequency, in percent.

    .. math:: \max_k \left| \frac1N \sum_i p_{ik} - \mathrm{freq}_k \right|

    Args:
        table: ``(…, 3, K)``: the count of predictions, of labels, and the sum of the probabilities
            of each class.
    """
    count, labels, probs = _rows(table)
    return 100 * ((probs - labels).abs() / count).amax(-1)


def _rows(table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return count, correct and sum of confidences of each bin, in float64."""
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
        table: ``(3, C)`` fine bins, ascending in confidence: count, correct, sum of confidences.
    """
    if not table[0].sum():
        return torch.tensor(torch.nan, dtype=torch.float64, device='cpu')
    spectrum = _residual_spectrum(table)
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        sigma = (low + high) / 2
        if _smoothed_error(spectrum, sigma) > sigma:
            low = sigma
        else:
            high = sigma
    return torch.tensor(100 * (low + high) / 2, dtype=torch.float64, device='cpu')


def _residual_spectrum(table: Tensor) -> Tensor:
    """Return the Fourier coefficients of the mirrored residuals, as shares of all predictions."""
    count, correct, conf = table[:, table[0] > 0].double()
    position = (conf / count).clamp(0, 1) * (GRID_POINTS - 1)
    point_below = position.floor().clamp(max=GRID_POINTS - 2)
    residual = (correct - conf) / count.sum()
    upper_part = residual * (position - point_below)
    grid = torch.zeros(GRID_POINTS, dtype=torch.float64, device='cpu')
    grid.index_add_(0, point_below.long(), residual - upper_part)
    grid.index_add_(0, point_below.long() + 1, upper_part)
    # The two ends are their own mirror images, so their residuals count twice.
    grid[0] *= 2
    grid[-1] *= 2
    return torch.fft.rfft(torch.cat([grid, grid[1:-1].flip(0)]))


def _smoothed_error(spectrum: Tensor, sigma: float) -> float:
    """Return the integral of the absolute residuals, smoothed by a kernel of width sigma."""
    k = torch.arange(len(spectrum), dtype=torch.float64, device='cpu')
    kernel = torch.exp(-((math.pi * k * sigma) ** 2) / 2)
    residuals = torch.fft.irfft(spectrum * kernel, 2 * (GRID_POINTS - 1))
    # The trapezoidal rule counts the two ends half, which is the mean over the mirrored circle.
    return residuals.abs().mean().item() * (GRID_POINTS - 1)


def least_nll(curve: Tensor, count: float) -> float:
    r"""Return the NLL at the best temperature, in nats, which no temperature removes.

    .. math:: \min_{T \in [1/16, 16]} \frac1N \sum_i \mathrm{NLL}_i(T)

    over all predictions. The temperature is fitted to the same predictions, which makes the NLL too
    low by about 1 / (2 N) nats.

    Source: Berta, Holzmüller, Jordan and Bach, Rethinking Early Stopping: Refine, Then Calibrate,
    arXiv:2501.19195; they take the temperature of a part of the predictions from the others.

    Args:
        curve: ``(33,)`` sums of the NLL at each of ``BETAS``.
        count: N.
    """
    _, value = _minimum(curve)
    return value / count


def removable_nll(curve: Tensor, count: float) -> float:
    """Return the NLL less :func:`least_nll`, in nats: the part that a temperature removes."""
    return curve[BETAS.index(1.0)].item() / count - least_nll(curve, count)


def temperature(curve: Tensor, count: float) -> float:
    """Return the temperature of the least NLL: above 1 the predictions are over-confident."""
    log_beta, _ = _minimum(curve)
    return math.exp(-log_beta)


def _minimum(curve: Tensor) -> tuple[float, float]:
    """Return the log β at which a cubic spline through the curve is least, and its value there."""
    from scipy.interpolate import CubicSpline  # Importing it takes a moment, and few need it.

    log_betas = np.log(BETAS)
    spline = CubicSpline(log_betas, curve.double().numpy())
    stationary = spline.derivative().roots(extrapolate=False)
    best_log_beta = -math.inf
    least = math.inf
    for log_beta in (*log_betas, *stationary):
        value = max(float(spline(log_beta)), 0.0)
        # Where values are equal, as if all predictions are correct, the largest β is taken.
        if value < least or (value == least and log_beta > best_log_beta):
            best_log_beta = log_beta
            least = value
    return best_log_beta, least
