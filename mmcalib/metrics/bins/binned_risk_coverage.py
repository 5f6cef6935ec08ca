"""Failure detection out of bins: figures of predictions in the order of their confidence.

All are of a ``(3, C)`` table of bins, ascending in confidence: count, correct, sum of confidences.
A bin is a group of predictions that are tied, whose order is averaged over: no order of samples
changes a number. Where bins are coarser than the data, :func:`order_bound` says what the order
within them could change. AURC, AUGRC and AUROC also take ``(R, 3, C)`` tables of R draws.

All are in percent, float64 scalars, and NaN without predictions. The formulas stand in
``functional/risk_coverage.py``, with the functions of arrays.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# What rounding may add to a product of a level and a number of predictions.
ROUNDING = 1e-9


def binned_aurc(table: Tensor) -> Tensor:
    """Return the area under the risk–coverage curve."""
    count, wrong, before, errors = _descending(table)
    # The sum over the bin of (errors + j wrong / count) / (before + j), j from 1 to count.
    reciprocals = torch.digamma(before + count + 1) - torch.digamma(before + 1)
    sums = wrong + (errors - before * wrong / count.clamp(min=1)) * reciprocals
    return 100 * sums.sum(-1) / count.sum(-1)


def binned_augrc(table: Tensor) -> Tensor:
    """Return the area under the generalized risk–coverage curve."""
    count, wrong, _, errors = _descending(table)
    return 100 * (count * errors + wrong * (count + 1) / 2).sum(-1) / count.sum(-1).square()


def binned_auroc(table: Tensor) -> Tensor:
    """Return the AUROC of failure detection; NaN if all are right, or all wrong."""
    count, wrong, before, errors = _descending(table)
    right, rights_above = count - wrong, before - errors
    pairs = (wrong * (rights_above + right / 2)).sum(-1)
    return 100 * pairs / (right.sum(-1) * wrong.sum(-1))


def binned_aupr(table: Tensor) -> Tensor:
    r"""Return the area under the curve of precision and recall of the right ones, in percent.

    .. math:: \frac1R \sum_{r} \frac{R_r}{i_r}

    over the R right predictions r, each at the place :math:`i_r` from the most confident on, with
    :math:`R_r` right ones up to it: average precision, without interpolation. NaN if all are
    right, or all wrong.

    Source: Hendrycks and Gimpel, ICLR 2017.
    """
    count, wrong, before, errors = _descending(table)
    right, rights_above = count - wrong, before - errors
    if not right.sum() * wrong.sum():
        return _nan()
    # If the j-th of a bin is right, so are other_share of the j - 1 before it. The sum over j of
    # right / count * (rights_above + 1 + (j - 1) other_share) / (before + j), from 1 to count.
    other_share = (right - 1) / (count - 1).clamp(min=1)
    reciprocals = torch.digamma(before + count + 1) - torch.digamma(before + 1)
    rest = rights_above + 1 - (before + 1) * other_share
    sums = right / count * (rest * reciprocals + other_share * count)
    return 100 * sums.sum() / right.sum()


def binned_fpr(table: Tensor, recall: float = 0.95) -> Tensor:
    r"""Return the share of wrong predictions that are accepted with a share of the right ones.

    .. math:: \frac{1}{W} \; \#\{w : \mathrm{conf}_w > \mathrm{conf}_{(m)}\},
        \qquad m = \lceil \mathrm{recall} \cdot R \rceil

    of W wrong and R right predictions, for the m-th most confident right one. Of r right and w
    wrong ones that are tied, :math:`j w / (r + 1)` wrong ones are expected before the j-th right
    one. NaN if all are right, or all wrong.

    Args:
        table: Of bins.
        recall: Share of the right predictions that are to be accepted, in (0, 1).
    """
    count, wrong, before, errors = _descending(table)
    right = count - wrong
    if not right.sum() * wrong.sum():
        return _nan()
    wanted = torch.ceil(recall * right.sum() - ROUNDING)
    narrow_bin = torch.searchsorted(right.cumsum(0), wanted)
    within = wanted - (before - errors)[narrow_bin]
    accepted = errors[narrow_bin] + within * wrong[narrow_bin] / (right[narrow_bin] + 1)
    return 100 * accepted / wrong.sum()


def binned_risk(table: Tensor, coverage: float) -> Tensor:
    """Return the error rate among a share `coverage` of predictions, the most confident."""
    count, wrong, before, errors = _descending(table)
    if not len(count):
        return _nan()
    accepted = torch.ceil(coverage * count.sum() - ROUNDING)
    narrow_bin = torch.searchsorted(count.cumsum(0), accepted)
    found = (
        errors[narrow_bin] + (accepted - before[narrow_bin]) * wrong[narrow_bin] / count[narrow_bin]
    )
    return 100 * found / accepted


def binned_coverage(table: Tensor, risk: float) -> Tensor:
    """Return the share of predictions that can be accepted at the error rate `risk`."""
    count, wrong, before, errors = _descending(table)
    if not len(count):
        return _nan()
    whole = errors + wrong <= risk * (before + count) + ROUNDING
    # Within a bin whose errors are more frequent than allowed: until they use up what was left.
    surplus = wrong / count - risk
    steps = ((risk * before - errors + ROUNDING) / surplus).floor()
    part = (surplus > 0) & (steps >= 1)
    accepted = torch.where(whole, before + count, torch.where(part, before + steps, 0))
    return 100 * accepted.max() / count.sum()


def risk_coverage_curve(table: Tensor) -> Tensor:
    """Return coverage and risk after each bin, ``(2, C)``, from the most confident on, in percent.

    Empty bins are left out.
    """
    count, wrong, before, errors = _descending(table)
    accepted = before + count
    return 100 * torch.stack([accepted / count.sum(), (errors + wrong) / accepted])


def order_bound(figure: Callable[[Tensor], Tensor], table: Tensor, spread: Tensor) -> Tensor:
    r"""Return the most that the order within bins could change a figure, in percentage points.

    Every figure here is the lowest if in each bin all right predictions are the more confident
    ones, and the highest if all wrong ones are, or the other way round. So the bound is attained.
    That of AUGRC is :math:`\frac{1}{2 N^2} \sum_c \mathrm{wrong}_c \mathrm{right}_c`.

    Args:
        figure: Of a table, such as :func:`binned_aurc`.
        table: Of bins.
        spread: ``(C,)`` largest less smallest confidence in each bin; 0 where all are tied.
    """
    right = table * torch.tensor([[0.0], [1], [0]], dtype=torch.float64)
    right[0] = table[1]
    wrong = table - right
    wrong[1] = 0
    mixed = spread > 0
    found = figure(table)
    ends = []
    for lower, upper in ((wrong, right), (right, wrong)):
        # Bins of which all predictions are tied stay whole.
        halves = torch.stack([torch.where(mixed, lower, table), torch.where(mixed, upper, 0)], -1)
        ends.append((figure(halves.flatten(1)) - found).abs())
    return torch.stack(ends).amax()


def _descending(table: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return count and errors of each bin, and those of all that are more confident.

    Without the empty bins of one table; in several they are in different places.
    """
    if table.ndim == 2:
        table = table[:, table[0] > 0]
    count, correct, _ = table.double().flip(-1).unbind(-2)
    wrong = count - correct
    return count, wrong, count.cumsum(-1) - count, wrong.cumsum(-1) - wrong


def _nan() -> Tensor:
    return torch.tensor(torch.nan, dtype=torch.float64)
