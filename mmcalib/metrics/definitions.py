"""Metrics by name, as in ``CalibrationMetric(metrics=[…])``: formula, unit, which way is better.

To add a metric, add a line to ``METRICS``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from mmcalib.errors import UserError, suggestion
from mmcalib.metrics import calibration_errors as errors, ranking
from mmcalib.metrics.bins import merge_equal_confidences
from mmcalib.metrics.counts import Counts, class_table


@dataclass(frozen=True)
class Metric:
    """A metric: its formula, and how its value is read.

    Attributes:
        value: Function of counts that have predictions.
        unit: ``'%'``, ``'nats'`` or nothing.
        better: ``'less'``, ``'greater'``, or None if neither is better.
        required: Name of the statistic that it requires of the outcomes beside confidences and NLL;
            None for no other.
        bin_formula: Function of a ``(…, 3, B)`` table and ``(…, 2)`` sums; None if the metric needs
            more, so that there is no interval over images.
        table: The table: ``'bins'`` of the confidences, or a kind of
            :func:`~mmcalib.metrics.counts.class_table`.
        grows_with_gaps: Whether it is 0 if no bin has a gap, and grows with each gap.
        target: Function of ``(…, 3, B)`` bins, the number that a debiased metric estimates; None if
            that is the metric of the true gaps itself.
        limits: The smallest and the largest value.
    """

    value: Callable[[Counts], float | Tensor]
    unit: str = '%'
    better: str | None = 'less'
    required: str | None = None
    bin_formula: Callable[[Tensor, Tensor], Tensor] | None = None
    table: str = 'bins'
    grows_with_gaps: bool = False
    target: Callable[[Tensor], Tensor] | None = None
    limits: tuple[float, float] = (0.0, 100.0)


def sum_metric(formula: Callable[[Tensor, Tensor], Tensor], **options) -> Metric:
    """Return a metric of ``(…, 3, B)`` bins and ``(…, 2)`` sums of NLL and Brier score."""
    return Metric(lambda counts: formula(counts.bins, counts.sums), bin_formula=formula, **options)


def bin_metric(
    formula: Callable[[Tensor], Tensor], *, grows_with_gaps: bool = True, **options
) -> Metric:
    """Return a metric of ``(…, 3, B)`` bins."""
    return sum_metric(lambda bins, _: formula(bins), grows_with_gaps=grows_with_gaps, **options)


def class_metric(formula: Callable[[Tensor], Tensor], *, table: str) -> Metric:
    """Return a metric of the bins of all classes, see :func:`class_table` for the tables."""
    return Metric(
        lambda counts: formula(class_table(counts.strata['classes'], table)),
        required='class_bins',
        bin_formula=lambda bins, _: formula(bins),
        table=table,
        grows_with_gaps=True,
    )


def ranking_metric(formula: Callable[..., Tensor], **options) -> Metric:
    """Return a metric of predictions in the order of their confidence."""
    return Metric(lambda counts: formula(counts.table), required='conf_code', **options)


def curve_metric(formula: Callable[[Tensor, float], float], **options) -> Metric:
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
    'ECE': bin_metric(errors.calibration_error),
    'AECE': Metric(lambda counts: errors.adaptive_error(counts.table, counts.bins.shape[1])),
    # The bins of all classes hold each prediction K times, so their ECE is the mean over classes.
    'ClasswiseECE': class_metric(errors.calibration_error, table='class_bins'),
    'rate_gap': class_metric(errors.largest_rate_gap, table='class_totals'),
    'smECE': Metric(lambda counts: errors.smooth_error(merge_equal_confidences(counts.table))),
    'debiasedECE': bin_metric(errors.debiased_error, target=errors.root_mean_square_error),
    'ACE': bin_metric(errors.average_error),
    'MCE': bin_metric(errors.maximum_error),
    'RMSCE': bin_metric(errors.root_mean_square_error),
    'OE': bin_metric(errors.overconfidence_error),
    'gap': bin_metric(errors.gap, better=None, grows_with_gaps=False, limits=(-100.0, 100.0)),
    'gap_size': Metric(lambda counts: errors.gap(counts.bins).abs()),
    'NLL': sum_metric(mean_nll, unit='nats', limits=(0.0, math.inf)),
    'refinement_NLL': curve_metric(errors.least_nll, unit='nats'),
    'calibration_NLL': curve_metric(errors.removable_nll, unit='nats'),
    'temperature': curve_metric(errors.temperature, unit='', better=None),
    'Brier': sum_metric(mean_brier, unit='', required='brier', limits=(0.0, 2.0)),
    'reliability': bin_metric(errors.reliability, unit='', limits=(0.0, 1.0)),
    # The noise of the bins adds to it what no resample shows, so it has no interval.
    'resolution': Metric(
        lambda counts: errors.resolution(counts.bins), unit='', better='greater', limits=(0.0, 0.25)
    ),
    'uncertainty': bin_metric(
        errors.uncertainty, unit='', better=None, grows_with_gaps=False, limits=(0.0, 0.25)
    ),
    'AURC': ranking_metric(ranking.aurc),
    'AUGRC': ranking_metric(ranking.augrc),
    'AUROC': ranking_metric(ranking.auroc, better='greater'),
    'FPR95': ranking_metric(ranking.fpr),
    'accuracy': bin_metric(errors.accuracy, better='greater', grows_with_gaps=False),
    'confidence': bin_metric(errors.confidence, better=None, grows_with_gaps=False),
}
NAMES = tuple(METRICS)
# Metrics that go with a level, as in ``risk@coverage_0.8``.
WITH_LEVEL = {
    'risk@coverage': (ranking.risk, 'less'),
    'coverage@risk': (ranking.coverage, 'greater'),
}


def metric_names(metrics: str | Sequence[str]) -> list[str]:
    """Return the names of one metric or of several, or raise a TypeError for anything else."""
    names = [metrics] if isinstance(metrics, str) else metrics
    if not isinstance(names, Iterable):
        raise TypeError(f"metrics must be a name, such as 'ECE', or several, got {metrics!r}")
    return list(names)


def find_metric(name: str) -> Metric:
    """Return the metric that has a name.

    Raises:
        ValueError: If there is none of this name, or its level is not between 0 and 1.
    """
    if name in METRICS:
        return METRICS[name]
    base_name, _, level_text = str(name).partition('_')
    if base_name not in WITH_LEVEL:
        label_metric = str(name).removesuffix('_macro')
        if label_metric != name and label_metric in NAMES:
            raise UserError(
                f'{name} comes with {label_metric} of several labels: give '
                f"metrics=[{label_metric!r}], and take ['{name}'] of the result"
            )
        choices = (*NAMES, *(f'{base_name}_LEVEL' for base_name in WITH_LEVEL))
        hint = suggestion(str(name), choices)
        raise UserError(f'metrics must be some of {choices}, got {name!r}{hint}')
    if not re.fullmatch(r'0?\.\d*[1-9]\d*', level_text):
        raise UserError(
            f'{base_name} needs a level between 0 and 1, as in {base_name}_0.8; got {name!r}'
        )
    level = float(level_text)
    formula, better = WITH_LEVEL[base_name]
    return ranking_metric(lambda table: formula(table, level), better=better)


def metric_value(name: str, counts: Counts) -> float:
    """Return the value of a metric, NaN without predictions."""
    return float(find_metric(name).value(counts)) if counts.count else math.nan
