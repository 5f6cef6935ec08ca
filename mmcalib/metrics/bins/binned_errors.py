"""Calibration errors, in percent, out of the tables that ``bin_tables.py`` counts.

Tables may have leading dimensions, ``(…, 3, B)``, and give as many errors, ``(…)``, in float64. All
are NaN for a table without predictions. Of arrays of probabilities, see ``calibration_error.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.metrics.bins.bin_tables import bins_between
from mmcalib.metrics.bins.conventions import MMCALIB, Convention


def binned_calibration_error(table: Tensor, *, count: Tensor | None = None) -> Tensor:
    r"""Return the expected calibration error of a binned table, in percent.

    .. math:: \sum_b \frac{n_b}{n} \left| \mathrm{acc}_b - \mathrm{conf}_b \right|

    Source: Eq. 8 of the paper. With equal-width bins this is ECE, with equal-mass bins AECE.

    Args:
        table: ``(…, 3, B)``: count, correct, sum of confidences.
        count: n, ``(…)``; what the bins hold if None.
    """
    counts, correct, conf = _rows(table)
    return 100 * (correct - conf).abs().sum(-1) / (counts.sum(-1) if count is None else count)


def binned_maximum_error(table: Tensor) -> Tensor:
    r"""Return :math:`\max_b |\mathrm{acc}_b - \mathrm{conf}_b|` over non-empty bins, in percent.

    Args:
        table: ``(…, 3, B)``: count, correct, sum of confidences.
    """
    count, correct, conf = _rows(table)
    gaps = (correct - conf).abs() / count.clamp(min=1)
    return 100 * torch.where(count.sum(-1) > 0, gaps.amax(-1), torch.nan)


def binned_root_mean_square_error(table: Tensor) -> Tensor:
    r"""Return the root mean square of the bins' gaps, in percent.

    .. math:: \sqrt{\sum_b \frac{n_b}{n} (\mathrm{acc}_b - \mathrm{conf}_b)^2}

    Args:
        table: ``(…, 3, B)``: count, correct, sum of confidences.
    """
    count, correct, conf = _rows(table)
    squares = (correct - conf).square() / count.clamp(min=1)
    return 100 * (squares.sum(-1) / count.sum(-1)).sqrt()


def binned_overconfidence_error(table: Tensor) -> Tensor:
    r"""Return the over-confidence error, in percent.

    .. math:: \sum_b \frac{n_b}{n} \mathrm{conf}_b \max(\mathrm{conf}_b - \mathrm{acc}_b, 0)

    Source: Thulasidasan et al., On Mixup Training, 2019.

    Args:
        table: ``(…, 3, B)``: count, correct, sum of confidences.
    """
    count, correct, conf = _rows(table)
    surplus = conf / count.clamp(min=1) * (conf - correct).clamp(min=0)
    return 100 * surplus.sum(-1) / count.sum(-1)


def binned_accuracy(table: Tensor) -> Tensor:
    """Return the share of correct predictions of a ``(…, 3, B)`` table, in percent."""
    count, correct, _ = _rows(table)
    return 100 * correct.sum(-1) / count.sum(-1)


def binned_confidence(table: Tensor) -> Tensor:
    """Return the mean confidence of a ``(…, 3, B)`` table, in percent."""
    count, _, conf = _rows(table)
    return 100 * conf.sum(-1) / count.sum(-1)


def binned_classwise_error(table: Tensor) -> Tensor:
    r"""Return the class-wise ECE, in percent: the mean over classes of their probability's ECE.

    .. math:: \frac1K \sum_k \sum_b \frac{n_{bk}}{n} \left| \mathrm{freq}_{bk} - p_{bk} \right|

    The published code leaves out classes above the largest label seen.

    Args:
        table: ``(3, K, B)`` of :func:`~mmcalib.metrics.bins.classwise_bins.classwise_bins`.
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
    edges = positions[(positions > 0) & (positions < mass[-1])]
    cut = torch.searchsorted(mass, edges)
    (n, a, conf), spread = table[:, cut], spread[cut]
    lower = edges - (mass[cut] - n)  # how many of the cut narrow bin lie below the edge: f * n
    share = lower / n
    if shares_ties:
        correct_off = torch.maximum(
            share * a - (lower - (n - a)).clamp(min=0), torch.minimum(lower, a) - share * a
        )
        off = correct_off + lower * (1 - share) * spread
    else:
        mean = conf / n
        off = (n - a) * mean + a * (1 - mean) + n * spread
    return 100 * 2 * torch.where(spread > 0, off, 0).sum() / mass[-1]


def _rows(table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return table.double().unbind(-2)
