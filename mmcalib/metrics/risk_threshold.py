r"""Thresholds on the confidence with a proven bound on the errors among the kept predictions.

A threshold t keeps a share :math:`a_i(t)` of the labelled predictions of group i, and a share
:math:`e_i(t)` of them is kept and wrong. Its risk, the error rate of the predictions it keeps, is

.. math:: R(t) = \frac{\mathbb{E}[e(t)]}{\mathbb{E}[a(t)]}

over new groups, which have the same weight whatever their size. A group is an image, a single
prediction, or several images that are not independent. The n groups of the validation are
independent draws of those; the predictions of a group may depend on each other. Pixels without a
label cannot be known to be wrong, so they are in no risk, even if many of them are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.metrics.log_bins import (
    NUM_LOG_BINS,
    count_in_log_bins,
    log_bin_index,
    log_bin_thresholds,
    shares_above,
)
from mmcalib.options import check_share, suggests_arguments
from mmcalib.predictions.arrays import Array
from mmcalib.predictions.from_arrays import read_arrays
from mmcalib.predictions.group_names import group_numbers
from mmcalib.predictions.image_predictions import ImagePredictions

# The tests begin at these thresholds, on their way from the strictest threshold to the loosest.
STARTS = (1 - 2.0**-9, 1 - 2.0**-7, 1 - 2.0**-5, 1 - 2.0**-3, 1 - 2.0**-1)
# Parts of the largest possible bet, and the stake on each.
BETS = (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
STAKES = (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 16)
# A proof is looked for in up to so many times the data.
MOST_COPIES = 1024
HALVINGS = 20
ROUNDING = 1e-9


@dataclass(frozen=True)
class RiskThreshold:
    """A threshold whose risk is proven to be at most `risk`, if there is one; as text, a sentence.

    Attributes:
        threshold: The confidence above which predictions are kept; None if none is proven.
        risk: The proven bound on the error rate of the kept predictions.
        probability: The share of validations for which such a bound holds.
        coverage: The share of the validation's predictions that is kept, labelled or not; 0 without
            a threshold.
        observed_risk: The error rate of the kept, labelled predictions of the validation; None
            without a threshold.
        num_groups: The number of independent groups of the validation: of its predictions, its
            images, or the groups that they were said to be of.
        num_needed: The number of such groups, with the same shares of errors, that a proof would
            take; None if there is a threshold, or if 1,024 times as many would prove none.
        unit: ``'predictions'``, ``'images'`` or ``'groups'``: the kind of the groups.
    """

    threshold: float | None
    risk: float
    probability: float
    coverage: float
    observed_risk: float | None
    num_groups: int
    num_needed: int | None = None
    unit: str = 'images'

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and texts, as JSON holds them."""
        return asdict(self)

    def __str__(self) -> str:
        promise = f'(with {100 * self.probability:g} % probability)'
        count = f'{self.num_groups:,} {self.unit}'
        if self.threshold is None:
            return (
                f'No threshold is proven to keep at most {100 * self.risk:g} % wrong predictions '
                f'{promise} by these {count}: {self.remedy()}.'
            )
        on_average = ''
        if self.unit != 'predictions':
            on_average = f', on average over such {self.unit}'
        return (
            f'Above a confidence of {self.threshold:.6g}, at most {100 * self.risk:g} % of the '
            f'predictions are wrong{on_average} {promise}. It keeps {100 * self.coverage:.1f} % of '
            f'these {count}, and {100 * self.observed_risk:.1f} % of what it keeps is wrong.'
        )

    def remedy(self) -> str:
        """Return what a proof would take."""
        if self.num_needed is not None:
            return f'about {self.num_needed:,} like these would prove one'
        return f'{MOST_COPIES:,} times as many like these would not prove one either'


class KeptShares(NamedTuple):
    """The shares of independent groups that C thresholds keep; equal groups may share a row.

    Attributes:
        kept: ``(U, C)`` float64 shares :math:`a_i` of the labelled predictions of a group.
        wrong: ``(U, C)`` float64 shares :math:`e_i`.
        count: ``(U,)`` float64 numbers of groups that have these shares.
        are_single: Whether each group is a single prediction.
    """

    kept: Tensor
    wrong: Tensor
    count: Tensor
    are_single: bool

    @property
    def num_groups(self) -> int:
        """The number of groups."""
        return int(self.count.sum())


@suggests_arguments
def threshold(
    conf: Array,
    correct: Array,
    risk: float = 0.05,
    probability: float = 0.9,
    groups: Sequence[Hashable] | None = None,
) -> RiskThreshold:
    r"""Return the confidence above which at most a share `risk` of the predictions is wrong.

    This is proven, by Learn then Test, for new predictions that are drawn as these were: with the
    probability p, over validations, no threshold is returned whose risk is larger. It is one of 97
    fixed thresholds, four to each halving of 1 - confidence, and the loosest that is proven.
    In simulations with p = 0.9 the bound held in 99.0 % or more of 1,000 draws, of independent and
    of grouped predictions (``tools/benchmarks/guarantees.py --table thresholds``).

    >>> rng = np.random.default_rng(0)
    >>> conf = rng.uniform(0.5, 1, 2000)
    >>> correct = rng.uniform(size=2000) < conf
    >>> bound = threshold(conf, correct, risk=0.1)
    >>> bound.threshold, round(bound.coverage, 3)
    (0.84375, 0.314)
    >>> kept = conf > bound.threshold
    >>> few = threshold(conf[:50], correct[:50], risk=0.1)
    >>> few.threshold, few.num_needed
    (None, 159)

    Args:
        conf: Probabilities of the predicted classes ``(N,)``, or of the pixels of N images
            ``(N, H, W)`` or ``(N, D, H, W)``, whose images are what is independent.
        correct: Whether these predictions are correct, booleans of the same shape. What numpy masks
            is not valid.
        risk: The largest share of wrong predictions among those that are kept. Choose it before you
            look at the result: of several that are tried, one succeeds by chance.
        probability: p.
        groups: N names of the groups that are independent, such as the patient of each slice.
            Groups count alike, whatever their size, and so do the images of a group.

    Raises:
        TypeError: For arguments that are no numbers.
        ValueError: For confidences that are NaN or outside [0, 1], values of `correct` other than
            true and false, arrays of different shapes, no valid prediction, another number of
            groups, or a risk or probability outside (0, 1).

    Source: see :func:`prove_threshold`.
    """
    check_share('risk', risk)
    check_share('probability', probability)
    predictions = read_arrays(conf=conf, correct=correct)
    group_index = None if groups is None else group_numbers(groups, len(predictions))
    if not predictions.valid.any():
        raise UserError('conf and correct have no valid prediction: give at least one')
    unit = 'images' if predictions.are_maps else 'predictions'
    if group_index is not None:
        unit = 'groups'
    shares = shares_of_predictions(predictions, group_index)
    return replace(prove_threshold(shares, risk, probability=probability), unit=unit)


def threshold_at_risk(
    image_log_bins: Tensor, risk: float, *, probability: float = 0.95
) -> RiskThreshold:
    """Return what :func:`threshold` returns, of images of which only log bins are known.

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
    bound = prove_threshold(shares_of_images(image_log_bins), risk, probability=probability)
    if bound.threshold is None:
        return bound
    labelled_images = image_log_bins[image_log_bins[:, 0].sum(dim=1) > 0]
    count = count_in_log_bins(labelled_images).double()
    is_kept = log_bin_thresholds() >= bound.threshold
    coverage = count[:, is_kept].sum(dim=1) / count.sum(dim=1)
    return replace(bound, coverage=coverage.mean().item())


def prove_threshold(shares: KeptShares, risk: float, *, probability: float) -> RiskThreshold:
    r"""Return the threshold that keeps the most at a risk, if there is a proven one.

    Learn then Test: every threshold of a fixed list has a hypothesis, :math:`R(t) > r`, and a
    p-value of it, :func:`risk_p_values`. They are tested from the strictest on by the fallback
    procedure, which divides the level :math:`\delta = 1 - p` among a few starts; a rejected
    hypothesis passes its level on to the next one. With a probability of at least p no true
    hypothesis is rejected, so all rejected ones are false together, and the loosest of them may be
    taken.

    Source: Angelopoulos, Bates, Candès, Jordan and Lei, Learn then Test, arXiv:2110.01052,
    Theorem 1; Wiens, Pharmaceutical Statistics 2003, for the fallback procedure.

    Args:
        shares: Shares of the validation's groups at each of :func:`log_bin_thresholds`.
        risk: r.
        probability: p.
    """
    level = 1 - probability
    p_values = p_value_function(shares, risk)
    index = loosest_rejected(p_values(1.0), level)
    if index is None:
        copies = copies_of_a_proof(p_values, level) if shares.num_groups else None
        return RiskThreshold(
            threshold=None,
            risk=risk,
            probability=probability,
            coverage=0.0,
            observed_risk=None,
            num_groups=shares.num_groups,
            num_needed=None if copies is None else math.ceil(copies * shares.num_groups),
        )
    kept = (shares.count @ shares.kept[:, index]).item()
    wrong = (shares.count @ shares.wrong[:, index]).item()
    return RiskThreshold(
        threshold=log_bin_thresholds()[index].item(),
        risk=risk,
        probability=probability,
        coverage=kept / shares.num_groups,
        observed_risk=wrong / kept,
        num_groups=shares.num_groups,
    )


def copies_of_a_proof(p_values: Callable[[float], list[float]], level: float) -> float | None:
    """Return how many times the data would prove a threshold; None if 1,024 times would not.

    Args:
        p_values: Function that :func:`p_value_function` returns.
        level: Probability with which any true hypothesis may be rejected.
    """

    def is_proven(copies: float) -> bool:
        return loosest_rejected(p_values(copies), level) is not None

    unproven = 1.0
    proven = 2.0
    while not is_proven(proven):
        unproven = proven
        proven *= 2
        if proven > MOST_COPIES:
            return None
    for _ in range(HALVINGS):
        middle = (unproven + proven) / 2
        if is_proven(middle):
            proven = middle
        else:
            unproven = middle
    return proven


def shares_of_images(image_log_bins: Tensor) -> KeptShares:
    """Return the shares of images, ``(n, 3, C)`` log bins, without those that have no labels."""
    kept, wrong = shares_above(image_log_bins)
    num_labelled = image_log_bins[:, 0].sum(dim=1)
    return KeptShares(kept, wrong, torch.ones_like(kept[:, 0]), bool((num_labelled <= 1).all()))


def shares_of_predictions(
    predictions: ImagePredictions, group_index: Tensor | None = None
) -> KeptShares:
    """Return the shares of confidences and whether they are correct, by images or groups.

    Args:
        predictions: Bare confidences, rows or maps.
        group_index: ``(N,)`` int64 group of each image; None if each is independent.
    """
    valid = predictions.valid
    conf = predictions.probs[:, 0][valid]
    is_correct = predictions.labels[valid] == 1
    code = log_bin_index(1 - conf.double()) * 2 + is_correct
    if not predictions.are_maps and group_index is None:
        # All predictions with one log bin are alike, so that a million rows take 196.
        count = torch.bincount(code, minlength=2 * NUM_LOG_BINS).double()
        codes = count.nonzero()[:, 0]
        bins = single_log_bins(codes)
        return KeptShares(*shares_above(bins), count[codes], are_single=True)
    if group_index is None:
        group_index = torch.arange(len(predictions), device='cpu')
    predictions_per_image = valid.flatten(1).sum(dim=1) if valid.ndim > 1 else valid.long()
    image_index = valid.nonzero()[:, 0]
    weight = 1 / predictions_per_image[image_index].double()
    size = int(group_index.max()) + 1
    bins = torch.bincount(
        group_index[image_index] * 2 * NUM_LOG_BINS + code, weight, size * 2 * NUM_LOG_BINS
    )
    wrong, correct = bins.view(size, NUM_LOG_BINS, 2).unbind(dim=2)
    kept_shares, wrong_shares = shares_above(torch.stack([wrong + correct, correct], dim=1))
    is_group_of_one = torch.bincount(group_index[image_index], minlength=size) <= 1
    return KeptShares(
        kept_shares,
        wrong_shares,
        torch.ones_like(kept_shares[:, 0]),
        are_single=bool(is_group_of_one.all()),
    )


def single_log_bins(codes: Tensor) -> Tensor:
    """Return the log bins ``(U, 2, 98)`` of single predictions.

    Args:
        codes: ``(U,)`` int64, twice the index of the log bin, and 1 more if it is correct.
    """
    bins = torch.zeros(len(codes), 2, NUM_LOG_BINS, dtype=torch.float64, device='cpu')
    row = torch.arange(len(codes), device='cpu')
    bins[row, 0, codes // 2] = 1
    bins[row, 1, codes // 2] = (codes % 2).double()
    return bins


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
        bound = threshold_at_risk(image_log_bins, middle / 100, probability=probability)
        if bound.threshold is not None:
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


def risk_p_values(shares: KeptShares, risk: float) -> list[float]:
    r"""Return a p-value of each threshold's hypothesis that its risk is above r.

    Where each group is one prediction, the number of errors among the kept ones is binomial, and
    this is exact:

    .. math:: P\big(\mathrm{Bin}(\textstyle\sum_i a_i,\, r) \leq \sum_i e_i\big)

    For groups of many predictions it is the inverse of the final capital of a bettor against the
    hypothesis, who cannot win on average while it is true:

    .. math:: 1 \Big/ \sum_k w_k \prod_i \Big(1 + \frac{b_k}{1 - r} (r a_i - e_i)\Big)

    for fixed bets :math:`b_k \leq 1` and stakes :math:`w_k` that sum to 1. The order of the groups
    does not matter. Unlike Hoeffding's bound it gains from groups that resemble each other.

    Source: Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting,
    JRSS B 2024, Section 4, with Markov's inequality.

    Args:
        shares: Shares of each group and threshold.
        risk: r, in (0, 1).
    """
    return p_value_function(shares, risk)(1.0)


def p_value_function(shares: KeptShares, risk: float) -> Callable[[float], list[float]]:
    """Return the function from a number of copies of the data to :func:`risk_p_values`."""
    if shares.are_single:
        return _binomial_p_values(shares, risk)
    return _betting_p_values(shares, risk)


def _binomial_p_values(shares: KeptShares, risk: float) -> Callable[[float], list[float]]:
    """Return the p-values of single predictions; a part of one is an error."""
    from scipy.stats import binom  # Importing it takes a second, and few need it.

    num_kept = (shares.count @ shares.kept).numpy()
    num_wrong = (shares.count @ shares.wrong).numpy()

    def p_values(copies: float) -> list[float]:
        kept = np.floor(copies * num_kept + ROUNDING)
        wrong = np.ceil(copies * num_wrong - ROUNDING)
        return binom.cdf(wrong, kept, risk).tolist()

    return p_values


def _betting_p_values(shares: KeptShares, risk: float) -> Callable[[float], list[float]]:
    """Return the p-values of groups of several predictions."""
    wins = (risk * shares.kept - shares.wrong) / (1 - risk)
    # Rounding must not make a loss of the whole capital larger than that.
    log_growth = [shares.count @ (bet * wins).clamp(min=-1).log1p() for bet in BETS]
    growth_by_bet = torch.stack(log_growth, dim=1)
    log_stakes = torch.tensor(STAKES, dtype=torch.float64, device='cpu').log()

    def p_values(copies: float) -> list[float]:
        log_capital = (copies * growth_by_bet + log_stakes).logsumexp(dim=1)
        return (-log_capital).exp().clamp(max=1).tolist()

    return p_values
