"""Calibration errors and parts of a Brier score, out of the tables that ``bin_tables.py`` counts.

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
    """Return the root of :func:`binned_reliability`, in percent.

    Args:
        table: ``(…, 3, B)``: count, correct, sum of confidences.
    """
    return 100 * binned_reliability(table).sqrt()


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
    count, correct, conf = _rows(table)
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
    count, correct, conf = _rows(table)
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
    count, correct, conf = _rows(table)
    return ((correct - conf).square() / count.clamp(min=1)).sum(-1) / count.sum(-1)


def binned_resolution(table: Tensor) -> Tensor:
    r"""Return how far the accuracies of bins lie from their mean; 0.25 is the most, and the best.

    .. math:: \sum_b \frac{n_b}{n} (\mathrm{acc}_b - \mathrm{acc})^2

    Arguments and source are those of :func:`binned_reliability`.
    """
    count, correct, _ = _rows(table)
    mean = correct.sum(-1, keepdim=True) / count.sum(-1, keepdim=True)
    gaps = correct - count * mean
    return (gaps.square() / count.clamp(min=1)).sum(-1) / count.sum(-1)


def binned_uncertainty(table: Tensor) -> Tensor:
    r"""Return :math:`\mathrm{acc} (1 - \mathrm{acc})`, which no confidence can change.

    Arguments and source are those of :func:`binned_reliability`.
    """
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
