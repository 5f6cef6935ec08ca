r"""Thresholds on the confidence with a proven bound on the errors among the kept predictions.

A threshold t keeps a share :math:`a_i(t)` of the labelled predictions of image i, and a share
:math:`e_i(t)` of them is kept and wrong. Its risk, the error rate of the predictions it keeps, is

.. math:: R(t) = \frac{\mathbb{E}[e(t)]}{\mathbb{E}[a(t)]}

over new images, which have the same weight whatever their size. The n images of the validation are
independent draws of those; their pixels may depend on each other. Pixels without a label cannot be
known to be wrong, so they are in no risk, even if many of them are kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mmcalib.metrics.log_bins import count_in_log_bins, log_bin_thresholds, shares_above
from mmcalib.options import check_share

# The tests begin at these thresholds, on their way from the strictest threshold to the loosest.
STARTS = (1 - 2.0**-9, 1 - 2.0**-7, 1 - 2.0**-5, 1 - 2.0**-3, 1 - 2.0**-1)
# Parts of the largest possible bet, and the stake on each.
BETS = (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
STAKES = (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 16)


@dataclass(frozen=True)
class RiskThreshold:
    """A threshold whose risk is at most `risk`, with a `probability` over validations.

    Attributes:
        threshold: The confidence above which predictions are kept.
        risk: Bound of the error rate of the kept predictions.
        probability: Share of validations for which such a bound holds.
        coverage: Share of the validation's predictions that is kept, labelled or not.
        observed_risk: Error rate of the kept, labelled predictions of the validation.
        num_images: Number of images of the validation.
    """

    threshold: float
    risk: float
    probability: float
    coverage: float
    observed_risk: float
    num_images: int


def threshold_at_risk(
    image_log_bins: Tensor, risk: float, *, probability: float = 0.95
) -> RiskThreshold | None:
    r"""Return the threshold that keeps the most at a risk, None where no threshold is proven.

    Learn then Test: every threshold of a fixed list has a hypothesis, :math:`R(t) > r`, and a
    p-value of it, :func:`risk_p_values`. They are tested from the strictest on by the fallback
    procedure, which divides the level :math:`\delta = 1 - p` among a few starts; a rejected
    hypothesis passes its level on to the next one. With a probability of at least p no true
    hypothesis is rejected, so all rejected ones are false together, and the loosest of them may be
    taken.

    Source: Angelopoulos, Bates, Candès, Jordan and Lei, Learn then Test, arXiv:2110.01052,
    Theorem 1; Wiens, Pharmaceutical Statistics 2003, for the fallback procedure.

    Args:
        image_log_bins: ``(n, 3, C)`` log bins of n images, see
            :func:`~mmcalib.metrics.log_bins.log_bin_counts`.
        risk: r, a share such as 0.05.
        probability: p.

    Raises:
        ValueError: If one of the two is not in (0, 1).
    """
    check_share('risk', risk)
    check_share('probability', probability)
    kept, wrong = shares_above(image_log_bins)
    index = loosest_rejected(risk_p_values(kept, wrong, risk), 1 - probability)
    if index is None:
        return None
    labelled_images = image_log_bins[image_log_bins[:, 0].sum(dim=1) > 0]
    count = count_in_log_bins(labelled_images).double()
    coverage = count[:, index:].sum(dim=1) / count.sum(dim=1)
    return RiskThreshold(
        threshold=log_bin_thresholds()[index].item(),
        risk=risk,
        probability=probability,
        coverage=coverage.mean().item(),
        observed_risk=(wrong[:, index].mean() / kept[:, index].mean()).item(),
        num_images=len(kept),
    )


def least_provable_risk(
    image_log_bins: Tensor, risk: float, *, probability: float = 0.95
) -> float | None:
    """Return the least whole percent above a risk that a threshold is proven for, None without any.

    Args:
        image_log_bins, probability: Arguments of :func:`threshold_at_risk`.
        risk: A risk for which no threshold is proven.
    """
    unproven = math.floor(100 * risk + 1e-9)
    proven = 100  # A risk of 100 % needs no proof, and is no result.
    while proven - unproven > 1:
        middle = (unproven + proven) // 2
        if threshold_at_risk(image_log_bins, middle / 100, probability=probability):
            proven = middle
        else:
            unproven = middle
    return proven / 100 if proven < 100 else None


def loosest_rejected(p_values: list[float], level: float) -> int | None:
    """Return the index of the loosest threshold whose hypothesis is rejected, None without any.

    Args:
        p_values: p-values of the thresholds of all log bins, ascending.
        level: Probability with which any true hypothesis may be rejected.
    """
    thresholds = log_bin_thresholds().tolist()
    loosest = None
    level_left = 0.0
    for index in reversed(range(1, len(thresholds))):
        if thresholds[index] in STARTS:
            level_left += level / len(STARTS)
        if p_values[index] <= level_left:
            loosest = index
        else:
            level_left = 0.0
    return loosest


def risk_p_values(kept: Tensor, wrong: Tensor, risk: float) -> list[float]:
    r"""Return a p-value of each threshold's hypothesis that its risk is above r.

    Where each image has one prediction, the number of errors among the kept ones is binomial, and
    this is exact:

    .. math:: P\big(\mathrm{Bin}(\textstyle\sum_i a_i,\, r) \leq \sum_i e_i\big)

    For images of many pixels it is the inverse of the final capital of a bettor against the
    hypothesis, who cannot win on average while it is true:

    .. math:: 1 \Big/ \sum_k w_k \prod_i \Big(1 + \frac{b_k}{1 - r} (r a_i - e_i)\Big)

    for fixed bets :math:`b_k \leq 1` and stakes :math:`w_k` that sum to 1. The order of the images
    does not matter. Unlike Hoeffding's bound it gains from images that resemble each other.

    Source: Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting,
    JRSS B 2024, Section 4, with Markov's inequality.

    Args:
        kept: ``(n, C)`` float64 shares :math:`a_i` of each image and threshold.
        wrong: ``(n, C)`` float64 shares :math:`e_i`.
        risk: r, in (0, 1).
    """
    if all(((share == 0) | (share == 1)).all() for share in (kept, wrong)):
        from scipy.stats import binom  # Importing it takes a second, and few need it.

        return binom.cdf(wrong.sum(dim=0).numpy(), kept.sum(dim=0).numpy(), risk).tolist()
    wins = (risk * kept - wrong) / (1 - risk)
    # Rounding must not make a loss of the whole capital larger than that.
    log_growth = [(bet * wins).clamp(min=-1).log1p().sum(dim=0) for bet in BETS]
    stakes = torch.tensor(STAKES, dtype=torch.float64, device='cpu')
    log_capital = (torch.stack(log_growth, dim=1) + stakes.log()).logsumexp(dim=1)
    return (-log_capital).exp().clamp(max=1).tolist()
