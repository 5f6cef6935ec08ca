"""Intervals of the differences of two models' metrics, by a bootstrap over the same images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from mmcalib.metrics.definitions import find_metric
from mmcalib.metrics.intervals import (
    Bounds,
    Formula,
    GapNoise,
    gap_noise,
    intervals,
    largest_plausible_step,
    least_plausible_step,
    metric_values,
    tail_probabilities,
    values_of_table,
)
from mmcalib.metrics.unit_tables import TABLES, UnitTables

Mean = Callable[[Tensor, Tensor, Tensor], Tensor]


def difference_intervals(
    names: Sequence[str],
    a: UnitTables,
    b: UnitTables,
    *,
    level: float,
    mean: Mean | None = None,
    num_bootstrap: int = 1000,
    seed: int = 0,
) -> Bounds:
    """Return intervals of the metrics of b less those of a, over units that both have predicted.

    Every resample has the same units of both, so that what makes a unit hard for both cancels.
    Means and their ratios (accuracy, confidence, gap, NLL, Brier score) have
    :func:`~mmcalib.metrics.intervals.intervals`, which are those of a paired t-test but for the
    noise of the resamples. Binned errors have :func:`gap_difference_interval`.

    Args:
        names: Names of metrics that have a formula of bins and sums.
        a: Tables of one model.
        b: Tables of the other, of the same units with the same numbers of predictions.
        level: Level of the intervals, such as 0.95.
        mean: See :func:`~mmcalib.metrics.intervals.metric_values`.
        num_bootstrap: Number of resamples of the units.
        seed: Seed of these resamples.
    """
    is_filled = a.bins[:, 0].sum(dim=1) > 0
    a = a.select(is_filled)
    b = b.select(is_filled)
    sum_names = []
    gap_names = []
    for name in names:
        is_biased = find_metric(name).grows_with_gaps and mean is None
        (gap_names if is_biased else sum_names).append(name)
    bounds = {}
    if sum_names:

        def differences(weights: Tensor) -> dict[str, Tensor]:
            values_a = metric_values(sum_names, a, weights, mean=mean)
            values_b = metric_values(sum_names, b, weights, mean=mean)
            return {name: values_b[name] - values_a[name] for name in sum_names}

        bounds |= intervals(
            differences,
            len(a.bins),
            level=level,
            num_bootstrap=num_bootstrap,
            seed=seed,
            limits={name: difference_limits(name) for name in sum_names},
        )
    if not gap_names:
        return bounds
    if len(a.bins) < 2:
        return bounds | dict.fromkeys(gap_names, (float('nan'), float('nan')))
    for kind in TABLES:
        kind_names = [name for name in gap_names if find_metric(name).table == kind]
        if not kind_names:
            continue
        table_a = a.table(kind)
        table_b = b.table(kind)
        if torch.equal(table_a, table_b):
            bounds |= dict.fromkeys(kind_names, (0.0, 0.0))
            continue
        # One seed gives both the same resamples.
        noise_a = gap_noise(table_a, num_bootstrap=num_bootstrap, seed=seed)
        noise_b = gap_noise(table_b, num_bootstrap=num_bootstrap, seed=seed)
        for name in kind_names:
            metric = find_metric(name)
            error = partial(values_of_table, metric.bin_formula, a.sums)
            low, high = gap_difference_interval(
                error, metric.target or error, noise_a, noise_b, level=level
            )
            least, most = difference_limits(name)
            bounds[name] = (max(low, least), min(high, most))
    return bounds


def difference_limits(name: str) -> tuple[float, float]:
    """Return the least and the largest difference that a metric can have."""
    least, most = find_metric(name).limits
    return least - most, most - least


def gap_difference_interval(
    error: Formula, target: Formula, a: GapNoise, b: GapNoise, *, level: float
) -> tuple[float, float]:
    r"""Return the interval of the difference of two errors that add up the sizes of bins' gaps.

    The noise of the gaps raises each error, by a bias that is largest where the true gaps are 0 and
    vanishes where they are large. It cancels in the difference only as far as both models are
    equally far from calibration, which is not known. So with the difference d of the measured
    errors, quantiles q of its paired resamples less their mean, and the least and the largest bias
    that either model may have, the interval is

    .. math:: [d - q_{1 - \alpha/2} - (\mathrm{bias}_b^{max} - \mathrm{bias}_a^{min}),\;
        d - q_{\alpha/2} - (\mathrm{bias}_b^{min} - \mathrm{bias}_a^{max})]

    It is wider than one that takes the bias for known.

    Args:
        error: Function of ``(…, 3, B)`` bins.
        target: The number that a debiased error estimates; else the error itself.
        a: Gaps of one model.
        b: Gaps of the other, with the noise of the same resamples.
        level: Level of the interval.
    """
    difference = (b.value(error, b.gaps) - a.value(error, a.gaps)).item()
    resampled = b.value(error, b.gaps + b.noise) - a.value(error, a.gaps + a.noise)
    tails = tail_probabilities(level)
    low_noise, high_noise = (resampled - resampled.mean()).quantile(tails).tolist()
    least_a, most_a = bias_range(error, target, a, tail=(1 - level) / 2)
    least_b, most_b = bias_range(error, target, b, tail=(1 - level) / 2)
    low = difference - high_noise - (most_b - least_a)
    high = difference - low_noise - (least_b - most_a)
    return low, high


def bias_range(
    error: Formula, target: Formula, gaps: GapNoise, *, tail: float
) -> tuple[float, float]:
    """Return the least and the largest bias that an error may have by the noise of its gaps.

    They are those of the largest and of the smallest gaps that may well give the measured error.
    """
    smallest = least_plausible_step(error, gaps, tail=tail)
    largest = largest_plausible_step(error, gaps, gaps.widened, gaps.vanishing_step, tail=tail)
    biases = []
    for step in (smallest, 0.0 if largest is None else largest):
        true_gaps = gaps.widened(step)
        mean_error = gaps.value(error, true_gaps + gaps.noise).mean()
        biases.append((mean_error - gaps.value(target, true_gaps)).item())
    return min(biases), max(biases)
