"""Statistics and formula of each name in ``CalibrationMetric(metrics=[…])``.

To add a metric, add a line to ``DEFINITIONS``; a function of other statistics than these four
kinds needs a place for them in ``calibration_state.py`` too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from mmcalib.metrics.bins import binned_errors as errors
from mmcalib.metrics.bins import binned_risk_coverage, smooth_calibration_error
from mmcalib.metrics.bins.classwise_bins import ClasswiseBins
from mmcalib.metrics.bins.classwise_narrow_bins import ClasswiseNarrowBins
from mmcalib.metrics.bins.conventions import Convention
from mmcalib.metrics.bins.narrow_bins import ConfidenceBins
from mmcalib.metrics.refinement import FoldedCurves
from mmcalib.near_names import suggestion

# What a row of an image has beside its bins: sums over its predictions.
SUMS = ('correct', 'conf', 'nll', 'brier')
CONFIDENCE, RANKS, CLASSES = 'confidence', 'ranks', 'classes'


@dataclass(frozen=True)
class OfBins:
    """A metric of bins of equal width: ``(…, 3, B)`` tables to ``(…,)`` values.

    One of gaps is 0 where no bin has any, and grows with each.
    """

    value: Callable[[Tensor], Tensor]
    highest: float = 100.0
    lowest: float = 0.0
    of_gaps: bool = True


@dataclass(frozen=True)
class OfMean:
    """A metric that is the mean over predictions of one of ``SUMS``, times a factor."""

    sum: str
    factor: float = 1.0
    highest: float = 100.0
    lowest: float = 0.0


@dataclass(frozen=True)
class OfDistribution:
    """A metric of a whole distribution: its value and the most it can be off by, NaN if exact.

    Attributes:
        value: Given the bins, B and the convention.
        distribution: That of ``CONFIDENCE``; ``RANKS``, likewise by doubt, which tells saturated
            predictions apart; ``CLASSES``, the probabilities of each class in bins of equal width;
            or a number: those probabilities in narrow bins, with all up to it in one.
    """

    value: Callable[[Any, int, Convention], tuple[float, float]]
    distribution: str | float

    @property
    def of_classes(self) -> bool:
        """Whether it is computed from the probabilities of all classes."""
        return self.distribution not in (CONFIDENCE, RANKS)


@dataclass(frozen=True)
class OfCurves:
    """A metric of the NLL as a function of the temperature."""

    value: Callable[[FoldedCurves], float]


def adaptive_error(
    bins: ConfidenceBins, num_bins: int, convention: Convention
) -> tuple[float, float]:
    table, spread = bins.table(), bins.spread()
    value, bound = errors.equal_mass_error(table, spread, num_bins, convention=convention)
    return value, math.nan if bins.exact else bound


def figure_and_bound(
    figure: Callable[[Tensor], Tensor],
    bound_of: Callable[[Tensor, Tensor], Tensor],
    bins: ConfidenceBins,
    num_bins: int,
    convention: Convention,
) -> tuple[float, float]:
    table = bins.table()
    bound = math.nan if bins.exact else bound_of(table, bins.spread()).item()
    return figure(table).item(), bound


def of_order(figure: Callable[[Tensor], Tensor]) -> OfDistribution:
    """Return the metric of a figure of predictions in the order of their confidence."""
    # A closure could not be pickled.
    bound_of = partial(binned_risk_coverage.order_bound, figure)
    return OfDistribution(partial(figure_and_bound, figure, bound_of), RANKS)


def classwise_error(
    bins: ClasswiseBins, num_bins: int, convention: Convention
) -> tuple[float, float]:
    table = bins.table()
    if convention.only_seen_classes:
        seen = table[1].sum(dim=1).nonzero()
        table = table[:, : int(seen.max()) + 1 if len(seen) else 0]
    return errors.binned_classwise_error(table).item() if table.numel() else math.nan, math.nan


def classwise_adaptive_error(
    bins: ClasswiseNarrowBins, num_bins: int, convention: Convention, *, above_floor: bool = False
) -> tuple[float, float]:
    return bins.error(num_bins, above_floor=above_floor)


Definition = OfBins | OfMean | OfDistribution | OfCurves

DEFINITIONS: dict[str, Definition] = {
    'ECE': OfBins(errors.binned_calibration_error),
    'AECE': OfDistribution(adaptive_error, CONFIDENCE),
    'ClasswiseECE': OfDistribution(classwise_error, CLASSES),
    'ClasswiseAECE': OfDistribution(classwise_adaptive_error, 1e-4),
    # Nixon et al. leave out what is not above 1 %.
    'TACE': OfDistribution(partial(classwise_adaptive_error, above_floor=True), 0.01),
    'smECE': OfDistribution(
        partial(
            figure_and_bound,
            smooth_calibration_error.binned_smooth_error,
            smooth_calibration_error.smooth_error_bound,
        ),
        CONFIDENCE,
    ),
    'debiasedECE': OfBins(errors.binned_debiased_error),
    'ACE': OfBins(errors.binned_average_error),
    'MCE': OfBins(errors.binned_maximum_error),
    'RMSCE': OfBins(errors.binned_root_mean_square_error),
    'OE': OfBins(errors.binned_overconfidence_error),
    'gap': OfBins(errors.binned_gap, lowest=-100.0, of_gaps=False),
    'NLL': OfMean('nll', highest=math.inf),
    'refinement_NLL': OfCurves(FoldedCurves.refinement_nll),
    'calibration_NLL': OfCurves(FoldedCurves.calibration_nll),
    'temperature': OfCurves(FoldedCurves.temperature),
    'Brier': OfMean('brier', highest=2.0),
    'reliability': OfBins(errors.binned_reliability, highest=1.0),
    'resolution': OfBins(errors.binned_resolution, highest=0.25, of_gaps=False),
    'uncertainty': OfBins(errors.binned_uncertainty, highest=0.25, of_gaps=False),
    'AURC': of_order(binned_risk_coverage.binned_aurc),
    'AUGRC': of_order(binned_risk_coverage.binned_augrc),
    'AUROC': of_order(binned_risk_coverage.binned_auroc),
    'FPR95': of_order(binned_risk_coverage.binned_fpr),
    'accuracy': OfMean('correct', factor=100.0),
    'confidence': OfMean('conf', factor=100.0),
}
NAMES = tuple(DEFINITIONS)
# Metrics that go with a level, as in ``risk@coverage_0.8``.
WITH_LEVEL = {
    'risk@coverage': (binned_risk_coverage.binned_risk, 'coverage'),
    'coverage@risk': (binned_risk_coverage.binned_coverage, 'risk'),
}


def definition_of(name: str) -> Definition:
    """Return the definition of a metric: its statistics and its formula.

    Raises:
        ValueError: If there is none of this name, or its level is not between 0 and 1.
    """
    if name in DEFINITIONS:
        return DEFINITIONS[name]
    kind, _, level = str(name).partition('_')
    if kind not in WITH_LEVEL:
        known = (*NAMES, *(f'{kind}_LEVEL' for kind in WITH_LEVEL))
        near = suggestion(str(name), known)
        raise ValueError(f'metrics must be some of {known}, got {name!r}{near}')
    try:
        value = float(level)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise ValueError(f'{kind} needs a level between 0 and 1, as in {kind}_0.8; got {name!r}')
    figure, option = WITH_LEVEL[kind]
    return of_order(partial(figure, **{option: value}))


def has_bound(name: str) -> bool:
    """Return whether a metric may come with the most that it can be off by."""
    definition = definition_of(name)
    return isinstance(definition, OfDistribution) and definition.distribution != CLASSES
