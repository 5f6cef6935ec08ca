"""Each name in ``CalibrationMetric(metrics=[…])``: its formula, unit, and which way is better.

To add a metric, add a line to ``METRICS``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from mmcalib.errors import UserError, suggestion
from mmcalib.metrics import calibration_errors as errors
from mmcalib.metrics import ranking
from mmcalib.metrics.counts import Counts, by_confidence


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        value: Of counts; called only where there are predictions.
        unit: ``'%'``, ``'nats'`` or nothing.
        better: ``'less'``, ``'greater'``, or None where neither is.
        wanted: What the counts need for it beside confidences and NLL.
        of_rows: Of ``(…, 3, B)`` bins and ``(…, 2)`` sums; None if it needs more, so that there is
            no interval over images.
        gaps: Whether it is 0 where no bin has a gap, and grows with each.
        limits: The least and the largest value.
    """

    value: Callable[[Counts], float | Tensor]
    unit: str = '%'
    better: str | None = 'less'
    wanted: str | None = None
    of_rows: Callable[[Tensor, Tensor], Tensor] | None = None
    gaps: bool = False
    limits: tuple[float, float] = (0.0, 100.0)


def _of_rows(formula: Callable[[Tensor, Tensor], Tensor], **options) -> Metric:
    return Metric(lambda counts: formula(counts.bins, counts.sums), of_rows=formula, **options)


def _of_bins(formula: Callable[[Tensor], Tensor], *, gaps: bool = True, **options) -> Metric:
    return _of_rows(lambda bins, _: formula(bins), gaps=gaps, **options)


def _of_order(figure: Callable[..., Tensor], **options) -> Metric:
    return Metric(lambda counts: figure(counts.table), wanted='doubt', **options)


def _of_curve(figure: Callable[[Tensor, float], float], **options) -> Metric:
    return Metric(
        lambda counts: figure(counts.more['curve'], counts.count),
        wanted='curve',
        **options,
    )


def _mean_of(column: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda bins, sums: sums[..., column] / bins[..., 0, :].sum(-1)


METRICS = {
    'ECE': _of_bins(errors.calibration_error),
    'AECE': Metric(lambda counts: errors.adaptive_error(counts.table, counts.bins.shape[1])),
    'ClasswiseECE': Metric(
        lambda counts: errors.classwise_error(counts.more['classes']), wanted='classes'
    ),
    'smECE': Metric(lambda counts: errors.smooth_error(by_confidence(counts.table))),
    'debiasedECE': _of_bins(errors.debiased_error),
    'ACE': _of_bins(errors.average_error),
    'MCE': _of_bins(errors.maximum_error),
    'RMSCE': _of_bins(errors.root_mean_square_error),
    'OE': _of_bins(errors.overconfidence_error),
    'gap': _of_bins(errors.gap, better=None, gaps=False, limits=(-100.0, 100.0)),
    'gap_size': Metric(lambda counts: errors.gap(counts.bins).abs()),
    'NLL': _of_rows(_mean_of(0), unit='nats', limits=(0.0, math.inf)),
    'refinement_NLL': _of_curve(errors.least_nll, unit='nats'),
    'calibration_NLL': _of_curve(errors.removable_nll, unit='nats'),
    'temperature': _of_curve(errors.temperature, unit='', better=None),
    'Brier': _of_rows(_mean_of(1), unit='', wanted='brier', limits=(0.0, 2.0)),
    'reliability': _of_bins(errors.reliability, unit='', limits=(0.0, 1.0)),
    'resolution': _of_bins(
        errors.resolution, unit='', better='greater', gaps=False, limits=(0.0, 0.25)
    ),
    'uncertainty': _of_bins(
        errors.uncertainty, unit='', better=None, gaps=False, limits=(0.0, 0.25)
    ),
    'AURC': _of_order(ranking.aurc),
    'AUGRC': _of_order(ranking.augrc),
    'AUROC': _of_order(ranking.auroc, better='greater'),
    'FPR95': _of_order(ranking.fpr),
    'accuracy': _of_bins(errors.accuracy, better='greater', gaps=False),
    'confidence': _of_bins(errors.confidence, better=None, gaps=False),
}
NAMES = tuple(METRICS)
# Metrics that go with a level, as in ``risk@coverage_0.8``.
WITH_LEVEL = {
    'risk@coverage': (ranking.risk, 'less'),
    'coverage@risk': (ranking.coverage, 'greater'),
}


def metric_of(name: str) -> Metric:
    """Return the metric of a name.

    Raises:
        ValueError: If there is none of this name, or its level is not between 0 and 1.
    """
    if name in METRICS:
        return METRICS[name]
    kind, _, level = str(name).partition('_')
    if kind not in WITH_LEVEL:
        known = (*NAMES, *(f'{kind}_LEVEL' for kind in WITH_LEVEL))
        near = suggestion(str(name), known)
        raise UserError(f'metrics must be some of {known}, got {name!r}{near}')
    value = float(level) if re.fullmatch(r'0?\.\d+', level) else math.nan
    if not value > 0:
        raise UserError(f'{kind} needs a level between 0 and 1, as in {kind}_0.8; got {name!r}')
    figure, better = WITH_LEVEL[kind]
    return _of_order(lambda table: figure(table, value), better=better)


def value_of(name: str, counts: Counts) -> float:
    """Return the value of a metric, NaN without predictions."""
    return float(metric_of(name).value(counts)) if counts.count else math.nan
