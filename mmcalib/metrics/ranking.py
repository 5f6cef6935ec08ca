"""Failure detection: figures of predictions in the order of their confidence.

All are of a ``(3, C)`` table of cells, ascending in confidence: count, correct, sum of confidences.
A cell is a group of predictions that are tied, whose order is averaged over: no order of samples
changes a number. AURC, AUGRC and AUROC also take ``(R, 3, C)`` tables of R draws.

All are in percent, float64 scalars, and NaN without predictions.
"""

from __future__ import annotations

import torch
from torch import Tensor

# What rounding may add to a product of a level and a number of predictions.
ROUNDING = 1e-9


def aurc(table: Tensor) -> Tensor:
    r"""Return the area under the risk–coverage curve, AURC.

    .. math:: \frac1N \sum_{i=1}^N \frac{E_i}{i}

    for :math:`E_i` errors among the i most confident predictions. 0 if all are right, 100 if all
    are wrong.

    Source: Geifman, Uziel and El-Yaniv, Bias-Reduced Uncertainty Estimation for Deep Neural
    Classifiers, ICLR 2019.
    """
    count, wrong, before, errors = _descending(table)
    # The sum over the bin of (errors + j wrong / count) / (before + j), j from 1 to count.
    reciprocals = torch.digamma(before + count + 1) - torch.digamma(before + 1)
    sums = wrong + (errors - before * wrong / count.clamp(min=1)) * reciprocals
    return 100 * sums.sum(-1) / count.sum(-1)


def augrc(table: Tensor) -> Tensor:
    r"""Return the area under the generalized risk–coverage curve, AUGRC.

    .. math:: \frac1N \sum_{i=1}^N \frac{E_i}{N}

    0 if all are right, :math:`50 (1 + 1/N)` if all are wrong.

    Source: Traub et al., Overcoming Common Flaws in the Evaluation of Selective Classification
    Systems, NeurIPS 2024.
    """
    count, wrong, _, errors = _descending(table)
    return 100 * (count * errors + wrong * (count + 1) / 2).sum(-1) / count.sum(-1).square()


def auroc(table: Tensor) -> Tensor:
    r"""Return the AUROC of failure detection; NaN if all are right, or all wrong.

    .. math:: P(\mathrm{conf}_r > \mathrm{conf}_w) + \tfrac12 P(\mathrm{conf}_r = \mathrm{conf}_w)

    for a right prediction r and a wrong one w.

    Source: Hendrycks and Gimpel, A Baseline for Detecting Misclassified and Out-of-Distribution
    Examples, ICLR 2017.
    """
    count, wrong, before, errors = _descending(table)
    right, rights_above = count - wrong, before - errors
    pairs = (wrong * (rights_above + right / 2)).sum(-1)
    return 100 * pairs / (right.sum(-1) * wrong.sum(-1))


def aupr(table: Tensor) -> Tensor:
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


def fpr(table: Tensor, recall: float = 0.95) -> Tensor:
    r"""Return the share of wrong predictions that are accepted with a share of the right ones.

    .. math:: \frac{1}{W} \; \#\{w : \mathrm{conf}_w > \mathrm{conf}_{(m)}\},
        \qquad m = \lceil \mathrm{recall} \cdot R \rceil

    of W wrong and R right predictions, for the m-th most confident right one. Of r right and w
    wrong ones that are tied, :math:`j w / (r + 1)` wrong ones are expected before the j-th right
    one. NaN if all are right, or all wrong.

    Args:
        table: Of cells.
        recall: Share of the right predictions that are to be accepted, in (0, 1).
    """
    count, wrong, before, errors = _descending(table)
    right = count - wrong
    if not right.sum() * wrong.sum():
        return _nan()
    wanted = torch.ceil(recall * right.sum() - ROUNDING)
    cell = torch.searchsorted(right.cumsum(0), wanted)
    within = wanted - (before - errors)[cell]
    accepted = errors[cell] + within * wrong[cell] / (right[cell] + 1)
    return 100 * accepted / wrong.sum()


def risk(table: Tensor, coverage: float) -> Tensor:
    r"""Return the error rate among a share `coverage` of predictions, the most confident.

    .. math:: \frac{E_i}{i}, \qquad i = \lceil \mathrm{coverage} \cdot N \rceil
    """
    count, wrong, before, errors = _descending(table)
    if not len(count):
        return _nan()
    accepted = torch.ceil(coverage * count.sum() - ROUNDING)
    cell = torch.searchsorted(count.cumsum(0), accepted)
    found = errors[cell] + (accepted - before[cell]) * wrong[cell] / count[cell]
    return 100 * found / accepted


def coverage(table: Tensor, risk: float) -> Tensor:
    r"""Return the share of predictions that can be accepted at the error rate `risk`.

    .. math:: \frac1N \max \{ i : E_i / i \leq \mathrm{risk} \}

    0 if the risk is above that at every coverage.
    """
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
    return torch.tensor(torch.nan, dtype=torch.float64, device='cpu')
