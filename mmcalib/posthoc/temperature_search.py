"""The search for the temperature of the least negative log-likelihood, where there is one."""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.optimize import brentq

from mmcalib.errors import UserError, warn
from mmcalib.posthoc.fit_rows import group_sums, nll_slopes, split_rows
from mmcalib.posthoc.logits import gaps_to_top
from mmcalib.predictions.image_predictions import ImagePredictions

# A temperature that the data do not determine, as separable logits do not, ends here.
TEMPERATURE_BOUNDS = (0.01, 100.0)
# A temperature above 100 needs an NLL that falls, as 1/T leaves 0, by more standard errors.
INFORMATIVE = 2.0
# The sum over G groups is at most the square root of G standard errors: fewer groups never tell.
LEAST_INFORMATIVE_GROUPS = 10
# A search beyond the bounds goes on by a factor of 100.
LOG_STEP = math.log(100)


def best_temperature(rows: ImagePredictions) -> float:
    """Return the temperature of the least NLL, which is convex in 1/T.

    Without a wrong prediction, or without information in the logits, there is none: then it is the
    bound on that side.

    Warns:
        UserWarning: If it is a bound.
    """
    if not any(gaps_to_top(logits).any() for (logits,) in split_rows(rows.logits)):
        raise UserError('the logits of each row are all equal: no temperature changes them')

    def slope(log_beta: float) -> float:
        return nll_slopes(rows, math.exp(log_beta)).mean().item()

    # The slope in 1/T is below 0 at `low` and above 0 at `high`.
    high = -math.log(TEMPERATURE_BOUNDS[0])
    low = -math.log(TEMPERATURE_BOUNDS[1])
    if slope(high) <= 0:
        if not any_wrong(rows):
            reason = 'no prediction is wrong, so nothing limits the confidence'
            return _bound_with_warning(TEMPERATURE_BOUNDS[0], reason)
        high = _step_until(lambda log_beta: slope(log_beta) > 0, start=high, step=LOG_STEP)
    elif slope(low) >= 0:
        if information(rows) <= INFORMATIVE:
            reason = 'the logits carry almost no information about the labels'
            return _bound_with_warning(TEMPERATURE_BOUNDS[1], reason)
        low = _step_until(lambda log_beta: slope(log_beta) < 0, start=low, step=-LOG_STEP)
    return math.exp(-brentq(slope, low, high, xtol=1e-10))


def _bound_with_warning(bound: float, reason: str) -> float:
    warn(f'the temperature reached its bound of {bound:.4g}: {reason}')
    return bound


def _step_until(is_beyond: Callable[[float], bool], *, start: float, step: float) -> float:
    """Return the first of start + step, start + 2 step, … that is beyond the minimum."""
    position = start + step
    while not is_beyond(position):
        position += step
    return position


def any_wrong(rows: ImagePredictions) -> bool:
    """Return whether any label has a lower logit than another class."""
    for logits, labels in split_rows(rows.logits, rows.labels):
        if gaps_to_top(logits).gather(1, labels[:, None]).any():
            return True
    return False


def information(rows: ImagePredictions) -> float:
    r"""Return by how many standard errors the NLL falls as 1/T leaves 0, over independent groups.

    .. math:: -\sum_g S_g \Big/ \sqrt{\sum_g S_g^2}

    with the sum :math:`S_g` of the slopes of a group's NLL in 1/T, at 1/T = 0. Logits that say
    nothing about the labels have about 0 ± 1; those of other classes than the labels' are negative.
    G groups give at most the square root of G, so of fewer than ten each row counts for itself.

    Source: the score test with a robust variance, Boos, The American Statistician, 1992.
    """
    slopes = nll_slopes(rows, beta=0.0)
    sums = group_sums(slopes, rows.images)
    if len(sums) < LEAST_INFORMATIVE_GROUPS:
        sums = slopes
    spread = sums.square().sum().sqrt().item()
    if spread == 0:
        return 0.0
    return -sums.sum().item() / spread
