"""Calibration errors and parts of a Brier score, out of the tables that ``bin_tables.py`` counts.

Tables are ``(…, 3, B)``: count, correct, sum of confidences. They give as many values, ``(…)``, in
float64, NaN for a table without predictions. The formulas stand in ``functional``, with the
functions of arrays.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.metrics.bins.bin_tables import bins_between
from mmcalib.metrics.bins.conventions import MMCALIB, Convention


def binned_calibration_error(table: Tensor, *, count: Tensor | None = None) -> Tensor:
    """Return the expected calibration error, in percent; over equal-mass bins, AECE.

    Args:
        table: ``(…, 3, B)``.
        count: n, ``(…)``; what the bins hold if None.
    """
    counts, correct, conf = _rows(table)
    return 100 * (correct - conf).abs().sum(-1) / (counts.sum(-1) if count is None else count)


def binned_maximum_error(table: Tensor) -> Tensor:
    """Return the largest gap of the bins, MCE, in percent."""
    count, correct, conf = _rows(table)
    gaps = (correct - conf).abs() / count.clamp(min=1)
    return 100 * torch.where(count.sum(-1) > 0, gaps.amax(-1), torch.nan)


def binned_root_mean_square_error(table: Tensor) -> Tensor:
    """Return the root of :func:`binned_reliability`, RMSCE, in percent."""
    return 100 * binned_reliability(table).sqrt()


def binned_overconfidence_error(table: Tensor) -> Tensor:
    """Return the over-confidence error, in percent."""
    count, correct, conf = _rows(table)
    surplus = conf / count.clamp(min=1) * (conf - correct).clamp(min=0)
    return 100 * surplus.sum(-1) / count.sum(-1)


def binned_debiased_error(table: Tensor) -> Tensor:
    """Return the debiased root mean square calibration error, in percent.

    The noise of a bin's accuracy adds to its squared gap what is subtracted here, if predictions
    are independent; neighbouring pixels are not. Bins of one prediction are left out.
    """
    count, correct, conf = _rows(table)
    accuracy = correct / count.clamp(min=1)
    noise = accuracy * (1 - accuracy) / (count - 1).clamp(min=1)
    squares = ((correct - conf) / count.clamp(min=1)).square() - noise
    mean = (torch.where(count > 1, count, 0) * squares).sum(-1) / count.sum(-1)
    return 100 * mean.clamp(min=0).sqrt()


def binned_average_error(table: Tensor) -> Tensor:
    """Return the mean gap of the bins that are not empty, ACE, in percent.

    A bin of one prediction weighs as much as one of a million.
    """
    count, correct, conf = _rows(table)
    gaps = (correct - conf).abs() / count.clamp(min=1)
    return 100 * gaps.sum(-1) / (count > 0).sum(-1)


def binned_reliability(table: Tensor) -> Tensor:
    """Return the reliability of confidence; 0 is the best, 1 the worst."""
    count, correct, conf = _rows(table)
    return ((correct - conf).square() / count.clamp(min=1)).sum(-1) / count.sum(-1)


def binned_resolution(table: Tensor) -> Tensor:
    """Return the resolution of confidence; 0.25 is the most, and the best."""
    count, correct, _ = _rows(table)
    mean = correct.sum(-1, keepdim=True) / count.sum(-1, keepdim=True)
    gaps = correct - count * mean
    return (gaps.square() / count.clamp(min=1)).sum(-1) / count.sum(-1)


def binned_uncertainty(table: Tensor) -> Tensor:
    """Return the uncertainty, which no confidence can change."""
    count, correct, _ = _rows(table)
    mean = correct.sum(-1) / count.sum(-1)
    return mean * (1 - mean)


def binned_accuracy(table: Tensor) -> Tensor:
    """Return the share of correct predictions of a ``(…, 3, B)`` table, in percent."""
    count, correct, _ = _rows(table)
    return 100 * correct.sum(-1) / count.sum(-1)


def binned_confidence(table: Tensor) -> Tensor:
    """Return the mean confidence of a ``(…, 3, B)`` table, in percent."""
    count, _, conf = _rows(table)
    return 100 * conf.sum(-1) / count.sum(-1)


def binned_gap(table: Tensor) -> Tensor:
    """Return mean confidence less accuracy, in percent points: above 0 is over-confident."""
    count, correct, conf = _rows(table)
    return 100 * (conf - correct).sum(-1) / count.sum(-1)


def binned_classwise_error(table: Tensor) -> Tensor:
    """Return the class-wise ECE, in percent, of a ``(3, K, B)`` table.

    The published code leaves out classes above the largest label seen.
    """
    return binned_calibration_error(table.movedim(0, 1)).mean()


def equal_mass_error(
    table: Tensor, spread: Tensor, num_bins: int, *, convention: Convention = MMCALIB
) -> tuple[float, float]:
    """Return the calibration error over bins of equal count, AECE, and the most it can be off by.

    Args:
        table: ``(3, C)`` table of narrow bins, ascending in confidence.
        spread: ``(C,)`` largest less smallest confidence in each narrow bin.
        num_bins: B.
        convention: Which bins those are.

    Returns:
        Percent, and percentage points: 0 where each narrow bin has one confidence.
    """
    positions = convention.positions(table, spread == 0, num_bins)
    # Not over the bins' own count: the published convention loses the least confident.
    count = table[0].sum()
    error = binned_calibration_error(bins_between(table, positions), count=count).item()
    bound = equal_mass_error_bound(table, spread, positions, shares_ties=convention.shares_ties)
    # The error lies between 0 and 100 in any case.
    return error, min(bound.item(), max(error, 100 - error))


def equal_mass_error_bound(
    table: Tensor, spread: Tensor, positions: Tensor, *, shares_ties: bool = True
) -> Tensor:
    r"""Bound how far the AECE of narrow bins lies from that of their confidences, in percent.

    The two differ only where an edge cuts a narrow bin: of n values, a of them correct, its lower
    share f holds between max(0, fn - (n - a)) and min(fn, a) correct ones, where
    :func:`~mmcalib.metrics.bins.bin_tables.equal_mass_bins` puts fa; and its confidence is off by
    at most f(1 - f)n times the spread of the narrow bin. Either moves between two bins. One whose
    values are all the same adds nothing.

    Where ties are not shared, any part of the narrow bin may belong to either side of the edge.

    Args:
        table: ``(3, C)`` table of narrow bins, ascending in confidence.
        spread: ``(C,)`` largest less smallest confidence in each narrow bin.
        positions: ``(B + 1,)`` how many predictions lie below each edge.
        shares_ties: As of the convention.

    Returns:
        Percentage points, a scalar.
    """
    mass = table[0].cumsum(0)
    if mass[-1] == 0:
        return torch.tensor(torch.nan, dtype=torch.float64)
    _, off = edge_shifts(table, spread, positions, shares_ties=shares_ties)
    return 100 * off.sum() / mass[-1]


def edge_shifts(
    table: Tensor, spread: Tensor, positions: Tensor, *, shares_ties: bool = True
) -> tuple[Tensor, Tensor]:
    """Return which narrow bin each edge cuts, and what that may add to all gaps together."""
    mass = table[0].cumsum(0)
    edges = positions[(positions > 0) & (positions < mass[-1])]
    cut = torch.searchsorted(mass, edges)
    (n, a, conf), spread = table[:, cut], spread[cut]
    lower = edges - (mass[cut] - n)  # how many of the cut bin lie below the edge: f * n
    share = lower / n
    if shares_ties:
        correct_off = torch.maximum(
            share * a - (lower - (n - a)).clamp(min=0), torch.minimum(lower, a) - share * a
        )
        off = correct_off + lower * (1 - share) * spread
    else:
        mean = conf / n
        off = (n - a) * mean + a * (1 - mean) + n * spread
    return cut, torch.where(spread > 0, 2 * off, 0)


def _rows(table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return table.double().unbind(-2)
