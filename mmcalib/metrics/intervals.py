"""Confidence intervals of a number, out of images drawn anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.metrics.definitions import metric_of
from mmcalib.options import check_share

# Draws at a time, so that few large matrices of weights exist together.
CHUNK = 50
# Of a search for the end of an interval.
HALVINGS = 30
# Steps away from the estimate, in standard deviations of its gaps; what is outside of the interval
# there stays outside, where what is near may be too low for it.
STEPS = (0.0, *(2.0**power for power in range(-2, 12)))
FAR = 4.0

Bounds = dict[str, tuple[float, float]]


def check_interval(option: str, coverage: float, names: Sequence[str]) -> None:
    """Raise a ValueError for a coverage that is no share, or metrics without intervals."""
    check_share(option, coverage)
    if not any(metric_of(name).of_bins for name in names):
        raise UserError(
            f'{option}: {" and ".join(names)} has no interval, because nothing is kept of each '
            'image, or because noise biases it (resolution): leave the option out, or add another '
            'metric'
        )


def interval_values(
    names: Sequence[str],
    bins: Tensor,
    sums: Tensor,
    *,
    coverage: float,
    num_bootstrap: int = 1000,
    seed: int = 0,
    mean: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
) -> dict[str, float]:
    """Return the ends of the intervals of metrics, ``ECE_low``, ``ECE_high`` and so on.

    Args:
        names: Of metrics; those whose statistics are not kept by unit are left out.
        bins: ``(U, 3, B)`` of units such as images, empty or not.
        sums: ``(U, 2)``.
        coverage, num_bootstrap, seed: As of :func:`intervals`.
        mean: Where a metric is a mean over units: of their ``(U,)`` values, bins, and ``(R, U)``
            weights; None where it is that of all predictions.
    """
    filled = bins[:, 0].sum(dim=1) > 0
    bins, sums = bins[filled], sums[filled]
    metrics = {name: metric_of(name) for name in names if metric_of(name).of_bins is not None}
    options = dict(
        coverage=coverage,
        num_bootstrap=num_bootstrap,
        seed=seed,
        limits={name: metric.limits for name, metric in metrics.items()},
    )

    def estimate(weights: Tensor) -> dict[str, Tensor]:
        if mean is None:
            return of_drawn(metrics, bins, sums, weights)
        values = {}
        for name, metric in metrics.items():
            values[name] = mean(metric.of_bins(bins, sums), bins, weights)
        return values

    bounds = intervals(estimate, len(bins), **options)
    if mean is None:
        growing = {}
        targets = {}
        for name, metric in metrics.items():
            if metric.grows_with_gaps:
                growing[name] = partial(values_of_table, metric.of_bins, sums)
                if metric.target is not None:
                    targets[name] = metric.target
        if growing:
            bounds |= gap_intervals(growing, bins, targets=targets, **options)
    ends = {}
    for name in metrics:
        ends[f'{name}_low'], ends[f'{name}_high'] = bounds[name]
    return ends


def values_of_table(
    formula: Callable[[Tensor, Tensor], Tensor], sums: Tensor, table: Tensor
) -> Tensor:
    """Return a metric of ``(…, 3, B)`` tables, which does not depend on the sums."""
    return formula(table, sums)


def of_drawn(
    names: Iterable[str], bins: Tensor, sums: Tensor, weights: Tensor
) -> dict[str, Tensor]:
    """Return metrics of units that count as often as ``(R, U)`` weights say, ``(R,)`` each."""
    drawn = (weights @ bins.flatten(1)).view(len(weights), *bins.shape[1:])
    formulas = {name: metric_of(name).of_bins for name in names}
    return {name: of_bins(drawn, weights @ sums) for name, of_bins in formulas.items() if of_bins}


def intervals(
    estimate: Callable[[Tensor], dict[str, Tensor]],
    num_units: int,
    *,
    coverage: float,
    num_bootstrap: int,
    seed: int,
    limits: Mapping[str, tuple[float, float]],
) -> Bounds:
    r"""Return intervals of means, and of what is nearly one, over units such as images.

    .. math:: \hat\theta + k \, (\theta^* - \hat\theta)

    lies in them with the probability `coverage`, for draws :math:`\theta^*` of as many units and
    :func:`widening` factors k. They are NaN for one unit, which says nothing about another.

    Source: the percentile bootstrap; Davison and Hinkley, Bootstrap Methods and Their Application,
    1997, Section 5.3.

    Args:
        estimate: Given ``(R, U)`` float64 weights of the units, the ``(R,)`` values of each metric.
        num_units: U, those that hold predictions.
        coverage: Of the interval, such as 0.95.
        num_bootstrap: How many times the units are drawn again.
        seed: Seed of these resamples.
        limits: The least and the largest value that a metric can have, if not 0 and 100.
    """
    found = estimate(torch.ones(1, num_units, dtype=torch.float64, device='cpu'))
    if num_units < 2:
        return dict.fromkeys(found, (float('nan'),) * 2)
    draws: dict[str, list[Tensor]] = {}
    for weights in drawn_weights(num_units, num_bootstrap=num_bootstrap, seed=seed):
        for name, values in estimate(weights).items():
            draws.setdefault(name, []).append(values)
    factors, bounds = widening(num_units, num_bootstrap, seed), {}
    for name, values in draws.items():
        around = found[name] + factors * (torch.cat(values) - found[name])
        bounds[name] = _limited(around.nanquantile(tails_of(coverage)).tolist(), limits.get(name))
    return bounds


def gap_intervals(
    errors: Mapping[str, Callable[[Tensor], Tensor]],
    bins: Tensor,
    *,
    targets: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    coverage: float,
    num_bootstrap: int,
    seed: int,
    limits: Mapping[str, tuple[float, float]],
) -> Bounds:
    r"""Return intervals of errors that add up the sizes of bins' gaps, such as ECE.

    Such an error is biased upwards by the noise of the gaps, the more the smaller the gaps are, so
    no quantiles of drawn errors hold the true one. Here a value :math:`\theta(\mu)` is in the
    interval if its gaps and the noise of the draws give errors on either side of the estimate:

    .. math:: P\big(\theta(\mu + k z) \geq \hat\theta\big) > \alpha / 2, \qquad
        P\big(\theta(\mu + k z) \leq \max(\hat\theta, m)\big) > \alpha / 2

    for gaps :math:`\mu`, noise z of the drawn gaps, and :func:`widening` factors k. An estimate
    below m, the median of :math:`\theta(k z)`, is small by chance, and must not end the interval at
    0. Of all :math:`\mu` it tries those that shrink or widen the estimated gaps by the same number
    of their standard deviations, and those that move them along the largest principal component of
    the noise, since the gaps of images differ together. NaN for one unit.

    Source: the inversion of a test by a bootstrap, Davison and Hinkley, 1997, Section 5.4; the
    median, a power-constrained limit, Cowan, Cranmer, Gross and Vitells, arXiv:1105.3166.

    Args:
        errors: By name, functions of ``(…, 3, B)`` tables, 0 where no bin has a gap.
        bins: ``(U, 3, B)`` tables of units that hold predictions: count, correct, sum of
            confidences.
        targets: By name, what debiased errors estimate, as functions of tables of the true gaps;
            all other errors estimate themselves.
        coverage, num_bootstrap, seed, limits: As of :func:`intervals`.
    """
    if len(bins) < 2:
        return dict.fromkeys(errors, (float('nan'),) * 2)
    pooled = bins.sum(dim=0)
    total, gaps = pooled[0].sum(), pooled[1] - pooled[2]
    flat = torch.stack([bins[:, 0], bins[:, 1] - bins[:, 2]], dim=1).flatten(1)
    noise = []
    for weights in drawn_weights(len(bins), num_bootstrap=num_bootstrap, seed=seed):
        count, drawn = (weights @ flat).view(len(weights), 2, -1).unbind(dim=1)
        noise.append(drawn * (total / count.sum(dim=1, keepdim=True)) - gaps)
    noise = torch.cat(noise)
    spread = noise.square().mean(dim=0).sqrt()
    variance, directions = torch.linalg.eigh(noise.T @ noise / len(noise))
    together = directions[:, -1] * variance[-1].sqrt()
    noise = noise * widening(len(bins), num_bootstrap, seed)[:, None]

    def table(moved: Tensor) -> Tensor:
        return torch.stack(torch.broadcast_tensors(pooled[0], pooled[2] + moved, pooled[2]), -2)

    targets = targets or {}
    bounds = {}
    tail = (1 - coverage) / 2
    for name, error in errors.items():
        target = targets.get(name, error)
        ends = _ends(
            lambda moved, error=error: error(table(moved)),
            lambda moved, target=target: target(table(moved)),
            gaps,
            noise,
            spread,
            together,
            tail,
        )
        bounds[name] = _limited(ends, limits.get(name))
    return bounds


def _ends(value, target, gaps, noise, spread, together, tail) -> tuple[float, float]:
    """Return the ends of the interval of one error; see :func:`gap_intervals`."""
    found = value(gaps)
    upper = torch.maximum(found, value(noise).median())
    steps = (gaps.abs() / spread)[spread > 0]
    vanished = -steps.max().item() if len(steps) else 0.0

    def widened(step: float) -> Tensor:  # each gap by so many of its standard deviations
        return gaps.sign() * (gaps.abs() + step * spread).clamp(min=0)

    def above(step: float) -> bool:
        return (value(widened(step) + noise) >= found).double().mean() > tail

    low = vanished if above(vanished) else _halve(above, 0.0, vanished)
    highest = []
    for path, start in (
        (widened, vanished),
        (lambda step: gaps + step * together, 0.0),
        (lambda step: gaps - step * together, 0.0),
    ):

        def below(step: float, path: Callable = path) -> bool:
            return (value(path(step) + noise) <= upper).double().mean() > tail

        last = after = None
        for step in (start, *STEPS):
            if below(step):
                last, after = step, None
            else:
                after = step if after is None else after
                if step >= FAR:
                    break
        if last is not None:
            highest.append(target(path(last if after is None else _halve(below, last, after))))
    return target(widened(low)).item(), max(highest).item()


def _halve(holds: Callable[[float], bool], inside: float, outside: float) -> float:
    """Return the last number from `inside` to `outside` that something holds for."""
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    return inside


def _limited(ends: Iterable[float], limits: tuple[float, float] | None) -> tuple[float, ...]:
    least, most = limits or (0.0, 100.0)
    return tuple(min(max(end, least), most) for end in ends)


def widening(num_units: int, num_bootstrap: int, seed: int) -> Tensor:
    r"""Return factors of the draws' distances from the estimate, ``(num_bootstrap,)`` float64.

    .. math:: k = \sqrt{\frac{U}{U - 1} \; \frac{U - 1}{\chi^2_{U - 1}}}

    Drawn units vary less than new ones, by the first fraction; and how much units vary is itself
    known from U of them only, which makes a Student's t of a normal distribution.

    Args:
        num_units: U, at least 2.
        num_bootstrap: How many.
        seed: Seed of these resamples.
    """
    chi_squared = np.random.default_rng(seed).chisquare(num_units - 1, num_bootstrap)
    return torch.from_numpy(np.sqrt(num_units / chi_squared))


def drawn_weights(num_units: int, *, num_bootstrap: int, seed: int) -> Iterator[Tensor]:
    """Yield how often units are drawn: ``(R, U)`` float64, a few of the `num_bootstrap` at a time.

    Args:
        num_units: U, at least 1.
        num_bootstrap: How many times as many units are drawn, with replacement.
        seed: Of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, num_bootstrap, CHUNK):
        size = (min(CHUNK, num_bootstrap - start), num_units)
        drawn = torch.randint(num_units, size, generator=generator, device='cpu')
        weights = torch.zeros(size, dtype=torch.float64, device='cpu')
        yield weights.scatter_add_(1, drawn, torch.ones_like(weights))


def tails_of(coverage: float) -> Tensor:
    """Return the two probabilities between which `coverage` of a distribution lies, float64."""
    return torch.tensor([(1 - coverage) / 2, (1 + coverage) / 2], dtype=torch.float64, device='cpu')
