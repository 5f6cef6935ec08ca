"""Smooth ECE: a calibration error that has no bins, and picks its own scale of smoothing."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Points of the grid that residuals are put on, a power of two and one more; its steps are far below
# any width that is measured.
GRID = (1 << 12) + 1
HALVINGS = 40


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
        return torch.tensor(torch.nan, dtype=torch.float64)
    waves = _waves(table)
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        sigma = (low + high) / 2
        low, high = (sigma, high) if _error_at(waves, sigma) > sigma else (low, sigma)
    return torch.tensor(100 * (low + high) / 2, dtype=torch.float64)


def _waves(table: Tensor) -> Tensor:
    """Return the Fourier coefficients of the mirrored residuals, as shares of all predictions."""
    table = table[:, table[0] > 0].double()
    count, correct, conf = table
    place = (conf / count).clamp(0, 1) * (GRID - 1)
    below = place.floor().clamp(max=GRID - 2)
    upper = (correct - conf) / count.sum() * (place - below)
    lower = (correct - conf) / count.sum() - upper
    residuals = torch.zeros(GRID, dtype=torch.float64)
    residuals.index_add_(0, below.long(), lower).index_add_(0, below.long() + 1, upper)
    # Ends are their own mirror images, so they hold twice what lies on them.
    residuals[0] *= 2
    residuals[-1] *= 2
    return torch.fft.rfft(torch.cat([residuals, residuals[1:-1].flip(0)]))


def _error_at(waves: Tensor, sigma: float) -> float:
    k = torch.arange(len(waves), dtype=torch.float64)
    smooth = torch.fft.irfft(waves * torch.exp(-((math.pi * k * sigma) ** 2) / 2), 2 * (GRID - 1))
    # By the trapezoidal rule, the two ends count half: the mean over the whole mirrored circle.
    return smooth.abs().mean().item() * (GRID - 1)
