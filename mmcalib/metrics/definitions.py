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
from mmcalib.metrics.bins import merge_equal_confidences
from mmcalib.metrics.counts import Counts


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        value: Function of counts; called only if there are predictions.
        unit: ``'%'``, ``'nats'`` or nothing.
        better: ``'less'``, ``'greater'``, or None if neither is better.
        required: The statistic that the outcomes need for it beside confidences and NLL.
        of_bins: Function of ``(…, 3, B)`` bins and ``(…, 2)`` sums; None if it needs more, so that
            there is no interval over images.
        grows_with_gaps: Whether it is 0 if no bin has a gap, and grows with each gap.
        target: Function of ``(…, 3, B)`` bins, what a debiased metric estimates; None if that is
            the metric of the true gaps itself.
        limits: The smallest and the largest value.
    """

    value: Callable[[Counts], float | Tensor]
    unit: str = '%'
    better: str | None = 'less'
    required: str | None = None
    of_bins: Callable[[Tensor, Tensor], Tensor] | None = None
    grows_with_gaps: bool = False
    target: Callable[[Tensor], Tensor] | None = None
    limits: tuple[float, float] = (0.0, 100.0)


def metric_of_sums(formula: Callable[[Tensor, Tensor], Tensor], **options) -> Metric:
    """Return a metric of ``(…, 3, B)`` bins and ``(…, 2)`` sums of NLL and Brier score."""
    return Metric(lambda counts: formula(counts.bins, counts.sums), of_bins=formula, **options)


def metric_of_bins(
    formula: Callable[[Tensor], Tensor], *, grows_with_gaps: bool = True, **options
) -> Metric:
    """Return a metric of ``(…, 3, B)`` bins."""
    return metric_of_sums(lambda bins, _: formula(bins), grows_with_gaps=grows_with_gaps, **options)


def metric_of_ranking(formula: Callable[..., Tensor], **options) -> Metric:
    """Return a metric of predictions in the order of their confidence."""
    return Metric(
        lambda counts: formula(counts.ranking_table()), required='one_minus_conf', **options
    )


def metric_of_curve(formula: Callable[[Tensor, float], float], **options) -> Metric:
    """Return a metric of the NLL at several temperatures."""
    return Metric(
        lambda counts: formula(counts.nll_curve, counts.count), required='nll_curve', **options
    )


def mean_nll(bins: Tensor, sums: Tensor) -> Tensor:
    """Return the mean NLL, in nats."""
    return sums[..., 0] / bins[..., 0, :].sum(-1)


def mean_brier(bins: Tensor, sums: Tensor) -> Tensor:
    """Return the mean Brier score."""
    return sums[..., 1] / bins[..., 0, :].sum(-1)


METRICS = {
    'ECE': metric_of_bins(errors.calibration_error),
    'AECE': Metric(
        lambda counts: errors.adaptive_error(counts.ranking_table(), counts.bins.shape[1])
    ),
    'ClasswiseECE': Metric(
        lambda counts: errors.classwise_error(counts.strata['classes']), required='class_bins'
    ),
    'smECE': Metric(lambda counts: errors.smooth_error(merge_equal_confidences(counts.table))),
    'debiasedECE': metric_of_bins(errors.debiased_error, target=errors.root_mean_square_error),
    'ACE': metric_of_bins(errors.average_error),
    'MCE': metric_of_bins(errors.maximum_error),
    'RMSCE': metric_of_bins(errors.root_mean_square_error),
    'OE': metric_of_bins(errors.overconfidence_error),
    'gap': metric_of_bins(errors.gap, better=None, grows_with_gaps=False, limits=(-100.0, 100.0)),
    'gap_size': Metric(lambda counts: errors.gap(counts.bins).abs()),
    'NLL': metric_of_sums(mean_nll, unit='nats', limits=(0.0, math.inf)),
    'refinement_NLL': metric_of_curve(errors.least_nll, unit='nats'),
    'calibration_NLL': metric_of_curve(errors.removable_nll, unit='nats'),
    'temperature': metric_of_curve(errors.temperature, unit='', better=None),
    'Brier': metric_of_sums(mean_brier, unit='', required='brier', limits=(0.0, 2.0)),
    'reliability': metric_of_bins(errors.reliability, unit='', limits=(0.0, 1.0)),
    # The noise of the bins adds to it what no resample shows, so it has no interval.
    'resolution': Metric(
        lambda counts: errors.resolution(counts.bins), unit='', better='greater', limits=(0.0, 0.25)
    ),
    'uncertainty': metric_of_bins(
        errors.uncertainty, unit='', better=None, grows_with_gaps=False, limits=(0.0, 0.25)
    ),
    'AURC': metric_of_ranking(ranking.aurc),
    'AUGRC': metric_of_ranking(ranking.augrc),
    'AUROC': metric_of_ranking(ranking.auroc, better='greater'),
    'FPR95': metric_of_ranking(ranking.fpr),
    'accuracy': metric_of_bins(errors.accuracy, better='greater', grows_with_gaps=False),
    'confidence': metric_of_bins(errors.confidence, better=None, grows_with_gaps=False),
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
    return metric_of_ranking(lambda table: figure(table, value), better=better)


def value_of(name: str, counts: Counts) -> float:
    """Return the value of a metric, NaN without predictions."""
    return float(metric_of(name).value(counts)) if counts.count else math.nan
