"""The search for the temperature of the least negative log-likelihood, where there is one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from scipy.optimize import brentq
from torch import Tensor

from mmcalib.errors import UserError, warn
from mmcalib.posthoc.fit_rows import group_sums, nll_derivatives, split_rows
from mmcalib.posthoc.logits import gaps_to_top
from mmcalib.posthoc.masked_classes import masked_logits
from mmcalib.predictions.image_predictions import ImagePredictions

# A temperature that the data do not determine, as separable logits do not, ends here.
TEMPERATURE_BOUNDS = (0.01, 100.0)
# The same bounds of log(1/T).
LOG_BETA_BOUNDS = (-math.log(TEMPERATURE_BOUNDS[1]), -math.log(TEMPERATURE_BOUNDS[0]))
# After a smaller step of Newton's the error, about its square, is below the rounding of float32.
NEWTON_STEP = 1e-5
# A temperature above 100 needs an NLL that falls, as 1/T leaves 0, by more standard errors.
INFORMATIVE = 2.0
# The sum over G groups is at most the square root of G standard errors: fewer groups never tell.
LEAST_INFORMATIVE_GROUPS = 10
# A search beyond the bounds goes on by a factor of 100.
LOG_STEP = math.log(100)


def best_temperature(rows: ImagePredictions, *, start: float = 1.0) -> float:
    """Return the temperature of the least NLL, which is convex in 1/T.

    Without a wrong prediction, or without information in the logits, there is none: then it is the
    bound on that side.

    Args:
        rows: The predictions.
        start: The temperature to start from; the closer, the faster.

    Warns:
        UserWarning: If it is a bound.
    """

    def derivatives(log_beta: float) -> tuple[float, float]:
        slopes, curvatures = nll_derivatives(rows, math.exp(log_beta))
        return slopes.mean().item(), curvatures.mean().item() * math.exp(log_beta)

    root = find_root(derivatives, -math.log(start))
    if root is not None:
        return math.exp(-root)
    if not any(gaps_to_top(logits).any() for (logits,) in split_rows(rows.logits)):
        raise UserError('the logits of each row are all equal: no temperature changes them')

    def slope(log_beta: float) -> float:
        return derivatives(log_beta)[0]

    # The slope in 1/T is below 0 at `low` and above 0 at `high`.
    low, high = LOG_BETA_BOUNDS
    if slope(high) <= 0:
        if not any_wrong(rows):
            reason = 'no prediction is wrong, so nothing limits the confidence'
            return _bound_with_warning(TEMPERATURE_BOUNDS[0], reason)
        high += LOG_STEP
        while slope(high) <= 0:
            high += LOG_STEP
    elif slope(low) >= 0:
        if information(rows) <= INFORMATIVE:
            reason = 'the logits carry almost no information about the labels'
            return _bound_with_warning(TEMPERATURE_BOUNDS[1], reason)
        low -= LOG_STEP
        while slope(low) >= 0:
            low -= LOG_STEP
    return math.exp(-brentq(slope, low, high, xtol=1e-10))


def temperature_of_kept_rows(
    rows: ImagePredictions,
    is_kept: Tensor,
    temperature: float,
    derivatives_at_temperature: tuple[Tensor, Tensor],
) -> float:
    """Return the temperature of the least NLL of some of the rows, such as those without a fold.

    The search starts at the temperature of all rows, whose derivatives serve all folds, and is
    nearly always over after one more pass. No rows are copied.

    Args:
        rows: All predictions.
        is_kept: A mask of the rows that count, ``(M,)``.
        temperature: The temperature of the least NLL of all rows.
        derivatives_at_temperature: The slopes and curvatures at it, of :func:`nll_derivatives`.

    Warns:
        UserWarning: If it is a bound.

    Raises:
        UserError: If the kept rows determine no temperature.
    """
    log_start = -math.log(temperature)

    def derivatives(log_beta: float) -> tuple[float, float]:
        if log_beta == log_start:
            slopes, curvatures = derivatives_at_temperature
        else:
            slopes, curvatures = nll_derivatives(rows, math.exp(log_beta))
        slope = slopes[is_kept].mean().item()
        return slope, curvatures[is_kept].mean().item() * math.exp(log_beta)

    root = find_root(derivatives, log_start)
    if root is None:
        return best_temperature(rows.select(is_kept))
    return math.exp(-root)


def find_root(function: Callable[[float], tuple[float, float]], start: float) -> float | None:
    """Return where an increasing function of log(1/T) is 0, by Newton steps.

    A step that leaves the interval in which the root lies halves the interval instead.

    Args:
        function: A function that returns its value and its derivative.
        start: The position to start from.

    Returns:
        None if the root is not within :data:`LOG_BETA_BOUNDS`, or not determined.
    """
    low, high = LOG_BETA_BOUNDS
    is_low_known = False
    is_high_known = False
    position = min(max(start, low), high)
    while True:
        value, derivative = function(position)
        if value == 0:
            return position if derivative > 0 else None
        if value < 0:
            if position >= high:
                return None
            low = position
            is_low_known = True
        else:
            if position <= low:
                return None
            high = position
            is_high_known = True
        step = -value / derivative if derivative > 0 else math.copysign(math.inf, -value)
        position += step
        if low < position < high:
            if abs(step) < NEWTON_STEP:
                return position
        elif position >= high and not is_high_known:
            position = high
        elif position <= low and not is_low_known:
            position = low
        elif high - low < NEWTON_STEP:
            return (low + high) / 2
        else:
            position = (low + high) / 2


def _bound_with_warning(bound: float, reason: str) -> float:
    warn(f'the temperature reached its bound of {bound:.4g}: {reason}')
    return bound


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
    slopes = torch.cat(list(slopes_at_zero(rows)))
    sums = group_sums(slopes, rows.images)
    if len(sums) < LEAST_INFORMATIVE_GROUPS:
        sums = slopes
    spread = sums.square().sum().sqrt().item()
    if spread == 0:
        return 0.0
    return -sums.sum().item() / spread


def slopes_at_zero(rows: ImagePredictions) -> Iterator[Tensor]:
    """Yield the slope of each row's NLL in 1/T at 1/T = 0, over the classes that are not masked."""
    for logits, labels in split_rows(rows.logits, rows.labels):
        gaps = gaps_to_top(logits.double())
        counts = torch.full_like(gaps[:, 0], gaps.shape[1])
        label_gaps = gaps.gather(1, labels[:, None])[:, 0]
        is_masked = masked_logits(logits)
        if is_masked is not None:
            gaps = gaps.masked_fill(is_masked, 0)
            counts = (~is_masked).sum(dim=1)
        yield gaps.sum(dim=1) / counts - label_gaps


def temperature_error(
    temperature: float, slopes: Tensor, curvatures: Tensor, groups: Tensor
) -> float:
    """Return the robust (sandwich) standard error of the temperature of the least NLL.

    Args:
        temperature: T.
        slopes: The slope of each row's NLL in 1/T, ``(M,)``.
        curvatures: The curvature of each row's NLL in 1/T, ``(M,)``.
        groups: The independent group of each row, ``(M,)`` int64.

    Returns:
        NaN with fewer than two groups.
    """
    sums = group_sums(slopes, groups)
    curvature = curvatures.sum().item()
    if len(sums) < 2 or curvature == 0:
        return math.nan
    return sums.square().sum().sqrt().item() / curvature * temperature**2
