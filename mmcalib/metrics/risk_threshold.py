r"""A threshold on the confidence with a proven bound on the errors among the kept predictions.

A threshold t keeps a share :math:`a_i(t)` of the predictions of image i that get a label, and a
share :math:`e_i(t)` of them is kept and wrong. Its risk, what is wrong of what it keeps, is

.. math:: R(t) = \frac{\mathbb{E}[e(t)]}{\mathbb{E}[a(t)]}

over new images, each alike whatever its size. The n images are independent draws of those; nothing
is asked of the pixels in them. Of pixels that nobody labels, nobody can say what is wrong: they are
in no risk, however many of them are kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mmcalib.metrics.log_bins import count_in_log_bins, log_bin_thresholds, shares_above
from mmcalib.options import check_share

# Where the tests begin, on their way from the strictest threshold to the loosest.
STARTS = (1 - 2.0**-9, 1 - 2.0**-7, 1 - 2.0**-5, 1 - 2.0**-3, 1 - 2.0**-1)
# Parts of the largest bet there may be, and how much is put on each.
BETS = (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
STAKES = (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 16)


@dataclass(frozen=True)
class RiskThreshold:
    """A threshold whose risk is at most `risk`, with the given `probability` over validations.

    Attributes:
        threshold: What is more confident is kept.
        risk: The bound, a share of what is kept.
        probability: How often such a bound holds.
        coverage: The share that the threshold keeps of the validation, labelled or not.
        found_risk: The share of the labelled ones among them that is wrong.
        num_images: Of the validation.
    """

    threshold: float
    risk: float
    probability: float
    coverage: float
    found_risk: float
    num_images: int


def threshold_at_risk(
    image_narrow_bins: Tensor, risk: float, *, probability: float = 0.95
) -> RiskThreshold | None:
    r"""Return the threshold that keeps the most at a risk, None where no threshold is proven.

    Learn then Test: every threshold of a fixed list has a hypothesis, :math:`R(t) > r`, and a
    p-value of it, :func:`risk_p_values`. They are tested from the strictest on by the fallback
    procedure, which spends :math:`\delta = 1 - p` on a few starts and hands on what a rejected
    hypothesis was tested with. With a probability of at least p no true hypothesis is rejected, so
    all rejected ones are false together, and the loosest of them may be taken.

    Source: Angelopoulos, Bates, Candès, Jordan and Lei, Learn then Test, arXiv:2110.01052,
    Theorem 1; Wiens, Pharmaceutical Statistics 2003, for the fallback procedure.

    Args:
        image_narrow_bins: ``(n, 3, C)`` counts, see
            :func:`~mmcalib.metrics.log_bins.log_bin_counts`.
        risk: r, a share such as 0.05.
        probability: p.

    Raises:
        ValueError: If one of the two is not in (0, 1).
    """
    check_share('risk', risk)
    check_share('probability', probability)
    kept, wrong = shares_above(image_narrow_bins)
    found = loosest_rejected(risk_p_values(kept, wrong, risk), 1 - probability)
    if found is None:
        return None
    filled = image_narrow_bins[image_narrow_bins[:, 0].sum(dim=1) > 0]
    predicted = count_in_log_bins(filled).double()
    coverage = predicted[:, found:].sum(dim=1) / predicted.sum(dim=1)
    return RiskThreshold(
        threshold=log_bin_thresholds()[found].item(),
        risk=risk,
        probability=probability,
        coverage=coverage.mean().item(),
        found_risk=(wrong[:, found].mean() / kept[:, found].mean()).item(),
        num_images=len(kept),
    )


def least_provable_risk(
    image_narrow_bins: Tensor, risk: float, *, probability: float = 0.95
) -> float | None:
    """Return the least whole percent above a risk that a threshold is proven for, None without any.

    Args:
        image_narrow_bins, probability: As of :func:`threshold_at_risk`.
        risk: Which is not proven.
    """
    low, high = math.floor(100 * risk + 1e-9), 100
    while high - low > 1:  # Only `high`, if it is below 100, is known to be proven.
        middle = (low + high) // 2
        if threshold_at_risk(image_narrow_bins, middle / 100, probability=probability):
            high = middle
        else:
            low = middle
    return high / 100 if high < 100 else None


def loosest_rejected(p_values: list[float], level: float) -> int | None:
    """Return the first bin whose threshold's hypothesis is rejected, None without any.

    Args:
        p_values: Of the thresholds of all bins.
        level: With what probability any true hypothesis may be rejected.
    """
    thresholds, budget, found = log_bin_thresholds().tolist(), 0.0, None
    for column in reversed(range(1, len(thresholds))):
        budget += level / len(STARTS) * (thresholds[column] in STARTS)
        if p_values[column] <= budget:
            found = column
        else:
            budget = 0.0
    return found


def risk_p_values(kept: Tensor, wrong: Tensor, risk: float) -> list[float]:
    r"""Return a p-value of each threshold's hypothesis that its risk is above r.

    Where each image has one prediction, given how many are kept, the errors among them are
    binomial, and this is exact:

    .. math:: P\big(\mathrm{Bin}(\textstyle\sum_i a_i,\, r) \leq \sum_i e_i\big)

    Of images of many pixels it is the inverse of what a bettor against the hypothesis owns in the
    end, who may not win on average while it is true:

    .. math:: 1 \Big/ \sum_k w_k \prod_i \Big(1 + \frac{b_k}{1 - r} (r a_i - e_i)\Big)

    for fixed bets :math:`b_k \leq 1` and stakes :math:`w_k` that sum to 1. No order of the images
    changes it. Unlike Hoeffding's bound it gains from images that resemble each other.

    Source: Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting,
    JRSS B 2024, Section 4, with Markov's inequality.

    Args:
        kept: ``(n, C)`` float64 shares :math:`a_i` of each image and threshold.
        wrong: ``(n, C)`` float64 shares :math:`e_i`.
        risk: r, in (0, 1).
    """
    if all(((share == 0) | (share == 1)).all() for share in (kept, wrong)):
        from scipy.stats import binom  # takes a second to import, and few need it

        return binom.cdf(wrong.sum(dim=0).numpy(), kept.sum(dim=0).numpy(), risk).tolist()
    wins = (risk * kept - wrong) / (1 - risk)
    # Rounding must not make a loss of all a larger one.
    growth = [(bet * wins).clamp(min=-1).log1p().sum(dim=0) for bet in BETS]
    stakes = torch.tensor(STAKES, dtype=torch.float64, device='cpu')
    owned = (torch.stack(growth, dim=1) + stakes.log()).logsumexp(dim=1)
    return (-owned).exp().clamp(max=1).tolist()
