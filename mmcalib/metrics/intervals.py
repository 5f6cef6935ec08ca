"""Confidence intervals of metrics, by a bootstrap over images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.metrics.definitions import Metric, find_metric
from mmcalib.metrics.unit_tables import TABLES, UnitTables
from mmcalib.options import check_share

# Resamples that are made at a time, so that few large matrices of weights exist together.
RESAMPLES_AT_ONCE = 50
# Halvings that find the end of an interval.
HALVINGS = 30
# Steps away from the estimate, in standard deviations of its gaps. Below FAR a step may be outside
# of the interval and a larger one inside; beyond FAR all larger steps are outside too.
STEPS = (0.0, *(2.0**power for power in range(-2, 12)))
FAR = 4.0

Bounds = dict[str, tuple[float, float]]
Formula = Callable[[Tensor], Tensor]


def check_interval(option: str, level: float, names: Sequence[str]) -> None:
    """Raise a ValueError for a level that is no share, or metrics without intervals."""
    check_share(option, level)
    if not any(find_metric(name).bin_formula for name in names):
        raise UserError(
            f'{option}: {" and ".join(names)} has no interval, because nothing is kept of each '
            'image, or because noise biases it (resolution): leave the option out, or add another '
            'metric'
        )


def interval_values(
    names: Sequence[str],
    tables: UnitTables,
    *,
    level: float,
    num_bootstrap: int = 1000,
    seed: int = 0,
    mean: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
) -> dict[str, float]:
    """Return the ends of the intervals of metrics, ``ECE_low``, ``ECE_high`` and so on.

    Args:
        names: Names of metrics; those whose statistics are not kept by unit are left out.
        tables: Tables of units such as images, empty or not.
        level, num_bootstrap, seed: Options of :func:`intervals`.
        mean: Function of ``(U,)`` values of a metric, the bins, and ``(R, U)`` weights that returns
            ``(R,)`` means over units; None if a metric is that of all predictions together.
    """
    tables = tables.filled()
    metrics = {}
    for name in names:
        metric = find_metric(name)
        if has_formula(metric, tables):
            metrics[name] = metric
    options = dict(
        level=level,
        num_bootstrap=num_bootstrap,
        seed=seed,
        limits={name: metric.limits for name, metric in metrics.items()},
    )
    bounds = {}
    by_means = {}
    for name, metric in metrics.items():
        if mean is not None or not metric.grows_with_gaps:
            by_means[name] = metric
    if by_means:
        estimate = partial(metric_values, by_means, tables, mean=mean)
        bounds |= intervals(estimate, len(tables.bins), **options)
    for kind in TABLES:
        growing = {}
        targets = {}
        for name, metric in metrics.items():
            if name in by_means or metric.table != kind:
                continue
            growing[name] = partial(values_of_table, metric.bin_formula, tables.sums)
            if metric.target is not None:
                targets[name] = metric.target
        if growing:
            bounds |= gap_intervals(growing, tables.table(kind), targets=targets, **options)
    ends = {}
    for name in metrics:
        ends[f'{name}_low'], ends[f'{name}_high'] = bounds[name]
    return ends


def has_formula(metric: Metric, tables: UnitTables) -> bool:
    """Return whether a metric is a formula of a table that is kept of each unit."""
    return metric.bin_formula is not None and tables.table(metric.table) is not None


def values_of_table(
    formula: Callable[[Tensor, Tensor], Tensor], sums: Tensor, table: Tensor
) -> Tensor:
    """Return a metric of a ``(…, 3, *)`` table, which does not depend on the sums."""
    return formula(table, sums)


def metric_values(
    names: Iterable[str],
    tables: UnitTables,
    weights: Tensor,
    *,
    mean: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
) -> dict[str, Tensor]:
    """Return metrics of R resamples, ``(R,)`` each; one that the tables do not give is left out.

    Args:
        names: Names of metrics.
        tables: Tables of U units.
        weights: ``(R, U)``, how often each resample has each unit.
        mean: Function that averages a metric over units; None for the metric of all predictions
            together. See :meth:`~mmcalib.metrics.protocols.Protocol.mean`.
    """
    resampled_sums = weights @ tables.sums
    resampled_tables: dict[str, Tensor] = {}
    values = {}
    for name in names:
        metric = find_metric(name)
        if not has_formula(metric, tables):
            continue
        table = tables.table(metric.table)
        if mean is not None:
            values[name] = mean(metric.bin_formula(table, tables.sums), tables.bins, weights)
            continue
        if metric.table not in resampled_tables:
            resampled = (weights @ table.flatten(1)).view(len(weights), *table.shape[1:])
            resampled_tables[metric.table] = resampled
        values[name] = metric.bin_formula(resampled_tables[metric.table], resampled_sums)
    return values


def intervals(
    estimate: Callable[[Tensor], dict[str, Tensor]],
    num_units: int,
    *,
    level: float,
    num_bootstrap: int,
    seed: int,
    limits: Mapping[str, tuple[float, float]],
) -> Bounds:
    r"""Return intervals of means, and of metrics that are nearly means, over units such as images.

    .. math:: \hat\theta + k \, (\theta^* - \hat\theta)

    lies in them with the probability `level`, for values :math:`\theta^*` of resamples of as
    many units and :func:`widening_factors` k. They are NaN for one unit, which says nothing about
    another.

    Source: the percentile bootstrap; Davison and Hinkley, Bootstrap Methods and Their Application,
    1997, Section 5.3.

    Args:
        estimate: Function of ``(R, U)`` float64 weights of the units that returns the ``(R,)``
            values of each metric.
        num_units: U, the number of units that hold predictions.
        level: Level of the intervals, such as 0.95.
        num_bootstrap: Number of resamples of the units.
        seed: Seed of these resamples.
        limits: The least and the largest value that a metric can have; 0 and 100 for a metric that
            is not in it.
    """
    estimates = estimate(torch.ones(1, num_units, dtype=torch.float64, device='cpu'))
    if num_units < 2:
        return dict.fromkeys(estimates, (float('nan'), float('nan')))
    resampled: dict[str, list[Tensor]] = {name: [] for name in estimates}
    for weights in bootstrap_weights(num_units, num_bootstrap=num_bootstrap, seed=seed):
        for name, values in estimate(weights).items():
            resampled[name].append(values)
    factors = widening_factors(num_units, num_bootstrap, seed)
    tails = tail_probabilities(level)
    bounds = {}
    for name, values in resampled.items():
        widened = estimates[name] + factors * (torch.cat(values) - estimates[name])
        low, high = widened.nanquantile(tails).tolist()
        bounds[name] = _clamp_ends(low, high, limits.get(name))
    return bounds


def gap_intervals(
    errors: Mapping[str, Callable[[Tensor], Tensor]],
    bins: Tensor,
    *,
    targets: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    level: float,
    num_bootstrap: int,
    seed: int,
    limits: Mapping[str, tuple[float, float]],
) -> Bounds:
    r"""Return intervals of errors that add up the sizes of bins' gaps, such as ECE.

    Such an error is biased upwards by the noise of the gaps, the more the smaller the gaps are, so
    no quantiles of resampled errors hold the true one. Here a value :math:`\theta(\mu)` is in the
    interval if its gaps and the noise of the resamples give errors on either side of the estimate:

    .. math:: P\big(\theta(\mu + k z) \geq \hat\theta\big) > \alpha / 2, \qquad
        P\big(\theta(\mu + k z) \leq \max(\hat\theta, m)\big) > \alpha / 2

    for gaps :math:`\mu`, noise z of the resampled gaps, and :func:`widening_factors` k. An estimate
    below m, the median of :math:`\theta(k z)`, is small by chance, and must not end the interval at
    0. Two families of :math:`\mu` are tried: those that shrink or widen the estimated gaps by the
    same number of their standard deviations, and those that move them along the largest principal
    component of the noise, since the gaps of images differ together. NaN for one unit.

    Source: the inversion of a test by a bootstrap, Davison and Hinkley, 1997, Section 5.4; the
    median, a power-constrained limit, Cowan, Cranmer, Gross and Vitells, arXiv:1105.3166.

    Args:
        errors: By name, functions of ``(…, 3, B)`` bins, 0 where no bin has a gap.
        bins: ``(U, 3, B)`` bins of units that hold predictions: count, correct, sum of confidences.
        targets: By name, the numbers that debiased errors estimate, as functions of bins with the
            true gaps; an error that is not in it estimates itself.
        level, num_bootstrap, seed, limits: Options of :func:`intervals`.
    """
    if len(bins) < 2:
        return dict.fromkeys(errors, (float('nan'), float('nan')))
    targets = targets or {}
    gaps = gap_noise(bins, num_bootstrap=num_bootstrap, seed=seed)
    bounds = {}
    for name, error in errors.items():
        low, high = _gap_interval(error, targets.get(name, error), gaps, tail=(1 - level) / 2)
        bounds[name] = _clamp_ends(low, high, limits.get(name))
    return bounds


def gap_noise(bins: Tensor, *, num_bootstrap: int, seed: int) -> GapNoise:
    """Return the gaps of the sum of ``(U, 3, B)`` bins of units, and how resampling moves them."""
    count, correct, conf = bins.sum(dim=0)
    noise = _resampled_gaps(bins, num_bootstrap=num_bootstrap, seed=seed) - (correct - conf)
    variance, directions = torch.linalg.eigh(noise.T @ noise / len(noise))
    return GapNoise(
        count=count,
        conf=conf,
        gaps=correct - conf,
        noise=noise * widening_factors(len(bins), num_bootstrap, seed)[:, None],
        spread=noise.square().mean(dim=0).sqrt(),
        component=directions[:, -1] * variance[-1].sqrt(),
    )


def _resampled_gaps(bins: Tensor, *, num_bootstrap: int, seed: int) -> Tensor:
    """Return the gaps of resampled bins, ``(R, B)``, scaled to the count of all predictions."""
    count_and_gap = torch.stack([bins[:, 0], bins[:, 1] - bins[:, 2]], dim=1).flatten(1)
    total = bins[:, 0].sum()
    resampled = []
    for weights in bootstrap_weights(len(bins), num_bootstrap=num_bootstrap, seed=seed):
        count, gaps = (weights @ count_and_gap).view(len(weights), 2, -1).unbind(dim=1)
        resampled.append(gaps * (total / count.sum(dim=1, keepdim=True)))
    return torch.cat(resampled)


class GapNoise(NamedTuple):
    """Gaps of B bins, and how resampling moves them.

    Attributes:
        count: ``(B,)`` numbers of predictions.
        conf: ``(B,)`` sums of confidences.
        gaps: ``(B,)`` numbers of correct predictions less the sums of confidences.
        noise: ``(R, B)`` widened differences of the resampled gaps from the gaps.
        spread: ``(B,)`` standard deviations of the gaps.
        component: ``(B,)`` largest principal component of the noise, of the length of its standard
            deviation.
    """

    count: Tensor
    conf: Tensor
    gaps: Tensor
    noise: Tensor
    spread: Tensor
    component: Tensor

    def value(self, formula: Formula, gaps: Tensor) -> Tensor:
        """Return a metric of the bins if they had these ``(…, B)`` gaps, ``(…)``."""
        rows = torch.broadcast_tensors(self.count, self.conf + gaps, self.conf)
        return formula(torch.stack(rows, dim=-2))

    def widened(self, step: float) -> Tensor:
        """Return the gaps, each widened by so many of its standard deviations."""
        return self.gaps.sign() * (self.gaps.abs() + step * self.spread).clamp(min=0)

    def moved(self, step: float) -> Tensor:
        """Return the gaps, moved together by so many standard deviations of the component."""
        return self.gaps + step * self.component

    def moved_back(self, step: float) -> Tensor:
        """Return the gaps, moved the other way."""
        return self.gaps - step * self.component

    @property
    def vanishing_step(self) -> float:
        """The step of :meth:`widened` from which on no gap is left."""
        varies = self.spread > 0
        if not varies.any():
            return 0.0
        return -(self.gaps.abs() / self.spread)[varies].max().item()


def _gap_interval(
    error: Formula, target: Formula, gaps: GapNoise, *, tail: float
) -> tuple[float, float]:
    """Return the interval of one error; see :func:`gap_intervals`."""
    highest = []
    for path, start in (
        (gaps.widened, gaps.vanishing_step),
        (gaps.moved, 0.0),
        (gaps.moved_back, 0.0),
    ):
        high_step = largest_plausible_step(error, gaps, path, start, tail=tail)
        if high_step is not None:
            highest.append(gaps.value(target, path(high_step)))
    low_step = least_plausible_step(error, gaps, tail=tail)
    low = gaps.value(target, gaps.widened(low_step))
    return low.item(), max(highest).item()


def least_plausible_step(error: Formula, gaps: GapNoise, *, tail: float) -> float:
    """Return the step of the smallest widened gaps that may give an error as large as measured."""
    estimate = gaps.value(error, gaps.gaps)

    def may_be_as_large(step: float) -> bool:
        errors = gaps.value(error, gaps.widened(step) + gaps.noise)
        return (errors >= estimate).double().mean() > tail

    if may_be_as_large(gaps.vanishing_step):
        return gaps.vanishing_step
    return _last_inside(may_be_as_large, 0.0, gaps.vanishing_step)


def largest_plausible_step(
    error: Formula, gaps: GapNoise, path: Callable[[float], Tensor], start: float, *, tail: float
) -> float | None:
    """Return the largest step of a path whose gaps may give an error as small as measured."""
    estimate = gaps.value(error, gaps.gaps)
    # An estimate below the median of the noise alone is small by chance.
    upper_estimate = torch.maximum(estimate, gaps.value(error, gaps.noise).median())

    def may_be_as_small(step: float) -> bool:
        errors = gaps.value(error, path(step) + gaps.noise)
        return (errors <= upper_estimate).double().mean() > tail

    return _largest_step(may_be_as_small, start)


def _largest_step(is_inside: Callable[[float], bool], start: float) -> float | None:
    """Return the largest step that is inside of an interval; None if none is."""
    last_inside = None
    first_outside = None
    for step in (start, *STEPS):
        if is_inside(step):
            last_inside = step
            first_outside = None
            continue
        if first_outside is None:
            first_outside = step
        if step >= FAR:
            break
    if last_inside is None or first_outside is None:
        return last_inside
    return _last_inside(is_inside, last_inside, first_outside)


def _last_inside(is_inside: Callable[[float], bool], inside: float, outside: float) -> float:
    """Return the last number from `inside` to `outside` that is inside, by halving."""
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2
        if is_inside(middle):
            inside = middle
        else:
            outside = middle
    return inside


def _clamp_ends(low: float, high: float, limits: tuple[float, float] | None) -> tuple[float, float]:
    """Return the ends of an interval within the limits of a metric."""
    least, most = limits or (0.0, 100.0)
    return min(max(low, least), most), min(max(high, least), most)


def widening_factors(num_units: int, num_bootstrap: int, seed: int) -> Tensor:
    r"""Return factors of the resamples' distances from the estimate, ``(num_bootstrap,)`` float64.

    .. math:: k = \sqrt{\frac{U}{U - 1} \; \frac{U - 1}{\chi^2_{U - 1}}}

    Resampled units vary less than new ones, by the first fraction; and the variance of units is
    itself known from U of them only, which makes a Student's t of a normal distribution.

    Args:
        num_units: U, at least 2.
        num_bootstrap: Number of factors.
        seed: Seed of the random numbers.
    """
    chi_squared = np.random.default_rng(seed).chisquare(num_units - 1, num_bootstrap)
    return torch.from_numpy(np.sqrt(num_units / chi_squared))


def bootstrap_weights(num_units: int, *, num_bootstrap: int, seed: int) -> Iterator[Tensor]:
    """Yield how often resamples have each unit, ``(R, U)`` float64, for a few resamples at a time.

    Args:
        num_units: U, at least 1.
        num_bootstrap: Number of resamples; each draws U units with replacement.
        seed: Seed of the resamples.
    """
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, num_bootstrap, RESAMPLES_AT_ONCE):
        size = (min(RESAMPLES_AT_ONCE, num_bootstrap - start), num_units)
        units = torch.randint(num_units, size, generator=generator, device='cpu')
        weights = torch.zeros(size, dtype=torch.float64, device='cpu')
        yield weights.scatter_add_(1, units, torch.ones_like(weights))


def tail_probabilities(level: float) -> Tensor:
    """Return the two probabilities between which `level` of a distribution lies, float64."""
    return torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64, device='cpu')
