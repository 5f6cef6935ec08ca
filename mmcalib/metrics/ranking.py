"""Failure detection: metrics of predictions in the order of their confidence.

They are functions of a ``(3, C)`` table of fine bins, ascending in confidence: count, correct, sum
of confidences. Predictions in one fine bin are tied, and their order is averaged over, so no order
of samples changes a value. AURC, AUGRC and AUROC also take ``(R, 3, C)`` tables of R resamples.

Values are in percent, float64 scalars, and NaN without predictions.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Rounding may add so much to the product of a level and a number of predictions.
ROUNDING = 1e-9


def aurc(table: Tensor) -> Tensor:
    r"""Return the area under the risk–coverage curve, AURC.

    .. math:: \frac1N \sum_{i=1}^N \frac{E_i}{i}

    for :math:`E_i` errors among the i most confident predictions. 0 if all are correct, 100 if all
    are wrong.

    Source: Geifman, Uziel and El-Yaniv, Bias-Reduced Uncertainty Estimation for Deep Neural
    Classifiers, ICLR 2019.
    """
    count, wrong, before, errors = _descending(table)
    # The sum over a fine bin of (errors + j wrong / count) / (before + j), j from 1 to count.
    reciprocals = torch.digamma(before + count + 1) - torch.digamma(before + 1)
    sums = wrong + (errors - before * wrong / count.clamp(min=1)) * reciprocals
    return 100 * sums.sum(-1) / count.sum(-1)


def augrc(table: Tensor) -> Tensor:
    r"""Return the area under the generalized risk–coverage curve, AUGRC.

    .. math:: \frac1N \sum_{i=1}^N \frac{E_i}{N}

    0 if all are correct, :math:`50 (1 + 1/N)` if all are wrong.

    Source: Traub et al., Overcoming Common Flaws in the Evaluation of Selective Classification
    Systems, NeurIPS 2024.
    """
    count, wrong, _, errors = _descending(table)
    return 100 * (count * errors + wrong * (count + 1) / 2).sum(-1) / count.sum(-1).square()


def auroc(table: Tensor) -> Tensor:
    r"""Return the AUROC of failure detection; NaN if all are correct, or all wrong.

    .. math:: P(\mathrm{conf}_r > \mathrm{conf}_w) + \tfrac12 P(\mathrm{conf}_r = \mathrm{conf}_w)

    for a correct prediction r and a wrong one w.

    Source: Hendrycks and Gimpel, A Baseline for Detecting Misclassified and Out-of-Distribution
    Examples, ICLR 2017.
    """
    count, wrong, before, errors = _descending(table)
    correct = count - wrong
    correct_before = before - errors
    pairs = (wrong * (correct_before + correct / 2)).sum(-1)
    return 100 * pairs / (correct.sum(-1) * wrong.sum(-1))


def aupr(table: Tensor) -> Tensor:
    r"""Return the area under the curve of precision and recall of correct predictions, in percent.

    .. math:: \frac1R \sum_{r} \frac{R_r}{i_r}

    over the R correct predictions r, each at rank :math:`i_r` from the most confident on, with
    :math:`R_r` correct ones up to it: average precision, without interpolation. NaN if all are
    correct, or all wrong.

    Source: Hendrycks and Gimpel, ICLR 2017.
    """
    count, wrong, before, errors = _descending(table)
    correct = count - wrong
    correct_before = before - errors
    if not correct.sum() * wrong.sum():
        return _nan()
    # If the j-th prediction of a fine bin is correct, so is the share `other_share` of the j - 1
    # before it. The sum over j, from 1 to count, is that of
    # correct / count * (correct_before + 1 + (j - 1) other_share) / (before + j).
    other_share = (correct - 1) / (count - 1).clamp(min=1)
    reciprocals = torch.digamma(before + count + 1) - torch.digamma(before + 1)
    rest = correct_before + 1 - (before + 1) * other_share
    sums = correct / count * (rest * reciprocals + other_share * count)
    return 100 * sums.sum() / correct.sum()


def fpr(table: Tensor, recall: float = 0.95) -> Tensor:
    r"""Return the share of wrong predictions that are accepted with a share of the correct ones.

    .. math:: \frac{1}{W} \; \#\{w : \mathrm{conf}_w > \mathrm{conf}_{(m)}\},
        \qquad m = \lceil \mathrm{recall} \cdot R \rceil

    of W wrong and R correct predictions, for the m-th most confident correct one. Among r correct
    and w wrong predictions that are tied, :math:`j w / (r + 1)` wrong ones are expected before the
    j-th correct one. NaN if all are correct, or all wrong.

    Args:
        table: ``(3, C)`` table of fine bins.
        recall: Share of the correct predictions that are to be accepted, in (0, 1).
    """
    count, wrong, before, errors = _descending(table)
    correct = count - wrong
    if not correct.sum() * wrong.sum():
        return _nan()
    correct_accepted = torch.ceil(recall * correct.sum() - ROUNDING)
    last_bin = torch.searchsorted(correct.cumsum(0), correct_accepted)
    correct_in_last = correct_accepted - (before - errors)[last_bin]
    wrong_in_last = correct_in_last * wrong[last_bin] / (correct[last_bin] + 1)
    return 100 * (errors[last_bin] + wrong_in_last) / wrong.sum()


def risk(table: Tensor, coverage: float) -> Tensor:
    r"""Return the error rate among a share `coverage` of predictions, the most confident.

    .. math:: \frac{E_i}{i}, \qquad i = \lceil \mathrm{coverage} \cdot N \rceil
    """
    count, wrong, before, errors = _descending(table)
    if not len(count):
        return _nan()
    accepted = torch.ceil(coverage * count.sum() - ROUNDING)
    last_bin = torch.searchsorted(count.cumsum(0), accepted)
    wrong_in_last = (accepted - before[last_bin]) * wrong[last_bin] / count[last_bin]
    return 100 * (errors[last_bin] + wrong_in_last) / accepted


def coverage(table: Tensor, risk: float) -> Tensor:
    r"""Return the share of predictions that can be accepted at the error rate `risk`.

    .. math:: \frac1N \max \{ i : E_i / i \leq \mathrm{risk} \}

    0 if the risk is above that at every coverage.
    """
    count, wrong, before, errors = _descending(table)
    if not len(count):
        return _nan()
    is_whole_accepted = errors + wrong <= risk * (before + count) + ROUNDING
    # A fine bin with a larger error rate is accepted in part, until the errors that the risk still
    # allows are used up.
    surplus = wrong / count - risk
    num_in_part = ((risk * before - errors + ROUNDING) / surplus).floor()
    is_part_accepted = (surplus > 0) & (num_in_part >= 1)
    accepted = torch.where(is_part_accepted, before + num_in_part, 0)
    accepted = torch.where(is_whole_accepted, before + count, accepted)
    return 100 * accepted.max() / count.sum()


def risk_coverage_curve(table: Tensor) -> Tensor:
    """Return coverage and risk after each fine bin, ``(2, C)``, in percent, descending.

    Empty bins are left out.
    """
    count, wrong, before, errors = _descending(table)
    accepted = before + count
    return 100 * torch.stack([accepted / count.sum(), (errors + wrong) / accepted])


def _descending(table: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the count and errors of each fine bin, and the sums of those that are more confident.

    Empty bins of a single table are left out; those of resamples differ, so they stay.
    """
    if table.ndim == 2:
        table = table[:, table[0] > 0]
    count, correct, _ = table.double().flip(-1).unbind(-2)
    wrong = count - correct
    return count, wrong, count.cumsum(-1) - count, wrong.cumsum(-1) - wrong


def _nan() -> Tensor:
    return torch.tensor(torch.nan, dtype=torch.float64, device='cpu')
