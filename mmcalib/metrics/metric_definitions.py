"""What each name in ``CalibrationMetric(metrics=[…])`` is computed from, and by which formula.

To add a metric, add a line to ``DEFINITIONS``; a function of other statistics than these four kinds
needs a place for them in ``calibration_state.py`` too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from mmcalib.metrics.bins import binned_errors as errors
from mmcalib.metrics.bins import estimates, risk_coverage, smooth_calibration_error
from mmcalib.metrics.bins.classwise_narrow_bins import ClasswiseNarrowBins
from mmcalib.metrics.bins.conventions import Convention
from mmcalib.metrics.bins.narrow_bins import ConfidenceBins

# What a row of an image has beside its bins: sums over its predictions.
SUMS = ('correct', 'conf', 'nll', 'brier')


@dataclass(frozen=True)
class OfBins:
    """A metric of bins of equal width: ``(…, 3, B)`` tables to ``(…,)`` values.

    One of gaps is 0 where no bin has any, and grows with each.
    """

    value: Callable[[Tensor], Tensor]
    highest: float = 100.0
    of_gaps: bool = True


@dataclass(frozen=True)
class OfMean:
    """A metric that is the mean over predictions of one of ``SUMS``, times a factor."""

    sum: str
    factor: float = 1.0
    highest: float = 100.0


@dataclass(frozen=True)
class OfNarrowBins:
    """A metric of the distribution of confidence: its value and the most it can be off by.

    What it can be off by is not looked at where narrow bins are the confidences themselves.
    """

    value: Callable[[ConfidenceBins, int, Convention], tuple[float, float]]
    ranks: bool = False  # by doubt, which tells saturated predictions apart


@dataclass(frozen=True)
class OfClasses:
    """A metric of the ``(3, K, B)`` bins of all classes, None before any prediction."""

    value: Callable[[Tensor | None, Convention], float]


@dataclass(frozen=True)
class OfClassNarrowBins:
    """A metric of the distributions of all classes' probabilities: its value and its bound.

    Probabilities of at most the floor are one narrow bin.
    """

    value: Callable[[ClasswiseNarrowBins, int], tuple[float, float]]
    floor: float


def adaptive_error(
    narrow_bins: ConfidenceBins, num_bins: int, convention: Convention
) -> tuple[float, float]:
    return errors.equal_mass_error(
        narrow_bins.table(), narrow_bins.spread(), num_bins, convention=convention
    )


def of_order(figure: Callable[[Tensor], Tensor]) -> OfNarrowBins:
    """Return the metric of a figure of predictions in the order of their confidence."""
    # A closure could not be pickled.
    return OfNarrowBins(partial(order_figure, figure), ranks=True)


def order_figure(
    figure: Callable[[Tensor], Tensor],
    narrow_bins: ConfidenceBins,
    num_bins: int,
    convention: Convention,
) -> tuple[float, float]:
    table, bound = narrow_bins.table(), math.nan
    if not narrow_bins.exact:
        bound = risk_coverage.order_bound(figure, table, narrow_bins.spread()).item()
    return figure(table).item(), bound


def smooth_error(
    narrow_bins: ConfidenceBins, num_bins: int, convention: Convention
) -> tuple[float, float]:
    table, bound = narrow_bins.table(), math.nan
    if not narrow_bins.exact:
        bound = smooth_calibration_error.smooth_error_bound(table, narrow_bins.spread()).item()
    return smooth_calibration_error.binned_smooth_error(table).item(), bound


def classwise_error(table: Tensor | None, convention: Convention) -> float:
    if table is None:
        return math.nan
    if convention.only_seen_classes:
        seen = table[1].sum(dim=1).nonzero()
        table = table[:, : int(seen.max()) + 1 if len(seen) else 0]
    return errors.binned_classwise_error(table).item() if table.numel() else math.nan


Definition = OfBins | OfMean | OfNarrowBins | OfClasses | OfClassNarrowBins

DEFINITIONS: dict[str, Definition] = {
    'ECE': OfBins(errors.binned_calibration_error),
    'AECE': OfNarrowBins(adaptive_error),
    'ClasswiseECE': OfClasses(classwise_error),
    'ClasswiseAECE': OfClassNarrowBins(ClasswiseNarrowBins.error, floor=1e-4),
    # Nixon et al. leave out what is not above 1 %.
    'TACE': OfClassNarrowBins(partial(ClasswiseNarrowBins.error, above_floor=True), floor=0.01),
    'smECE': OfNarrowBins(smooth_error),
    'debiasedECE': OfBins(estimates.binned_debiased_error),
    'ACE': OfBins(estimates.binned_average_error),
    'MCE': OfBins(errors.binned_maximum_error),
    'RMSCE': OfBins(errors.binned_root_mean_square_error),
    'OE': OfBins(errors.binned_overconfidence_error),
    'NLL': OfMean('nll', highest=math.inf),
    'Brier': OfMean('brier', highest=2.0),
    'reliability': OfBins(estimates.binned_reliability, highest=1.0),
    'resolution': OfBins(estimates.binned_resolution, highest=0.25, of_gaps=False),
    'uncertainty': OfBins(estimates.binned_uncertainty, highest=0.25, of_gaps=False),
    'AURC': of_order(risk_coverage.binned_aurc),
    'AUGRC': of_order(risk_coverage.binned_augrc),
    'AUROC': of_order(risk_coverage.binned_auroc),
    'FPR95': of_order(risk_coverage.binned_fpr),
    'accuracy': OfMean('correct', factor=100.0),
    'confidence': OfMean('conf', factor=100.0),
}
NAMES = tuple(DEFINITIONS)
# Metrics that go with a level, as in ``risk@coverage_0.8``.
WITH_LEVEL = {
    'risk@coverage': (risk_coverage.binned_risk, 'coverage'),
    'coverage@risk': (risk_coverage.binned_coverage, 'risk'),
}


def definition_of(name: str) -> Definition:
    """Return what a metric is computed from, and how.

    Raises:
        ValueError: If there is none of this name, or its level is not between 0 and 1.
    """
    if name in DEFINITIONS:
        return DEFINITIONS[name]
    kind, _, level = str(name).partition('_')
    if kind not in WITH_LEVEL:
        known = (*NAMES, *(f'{kind}_LEVEL' for kind in WITH_LEVEL))
        raise ValueError(f'metrics must be some of {known}, got {name!r}')
    try:
        value = float(level)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise ValueError(f'{kind} needs a level between 0 and 1, as in {kind}_0.8; got {name!r}')
    figure, option = WITH_LEVEL[kind]
    return of_order(partial(figure, **{option: value}))
