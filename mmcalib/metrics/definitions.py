"""What each name in ``CalibrationMetric(metrics=[…])`` is computed from, and by which formula.

To add a metric, add a line to ``DEFINITIONS``; a function of other statistics than these four kinds
needs a place for them in ``calibration_state.py`` too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from mmcalib.metrics import calibration_errors as errors
from mmcalib.metrics.bin_conventions import Convention
from mmcalib.metrics.confidence_cells import ConfidenceCells

# What a row of an image has beside its bins: sums over its predictions.
SUMS = ('correct', 'conf', 'nll', 'brier')


@dataclass(frozen=True)
class OfBins:
    """A metric of bins of equal width: ``(…, 3, B)`` tables to ``(…,)`` values."""

    value: Callable[[Tensor], Tensor]
    highest: float = 100.0


@dataclass(frozen=True)
class OfMean:
    """A metric that is the mean over predictions of one of ``SUMS``, times a factor."""

    sum: str
    factor: float = 1.0
    highest: float = 100.0


@dataclass(frozen=True)
class OfCells:
    """A metric of the distribution of confidence: its value and the most it can be off by."""

    value: Callable[[ConfidenceCells, int, Convention], tuple[float, float]]


@dataclass(frozen=True)
class OfClasses:
    """A metric of the ``(3, K, B)`` bins of all classes, None before any prediction."""

    value: Callable[[Tensor | None, Convention], float]


def adaptive_error(
    cells: ConfidenceCells, num_bins: int, convention: Convention
) -> tuple[float, float]:
    return errors.equal_mass_error(cells.table(), cells.spread(), num_bins, convention=convention)


def classwise_error(table: Tensor | None, convention: Convention) -> float:
    if table is None:
        return math.nan
    if convention.only_seen_classes:
        seen = table[1].sum(dim=1).nonzero()
        table = table[:, : int(seen.max()) + 1 if len(seen) else 0]
    return errors.binned_classwise_error(table).item() if table.numel() else math.nan


DEFINITIONS: dict[str, OfBins | OfMean | OfCells | OfClasses] = {
    'ECE': OfBins(errors.binned_calibration_error),
    'AECE': OfCells(adaptive_error),
    'ClasswiseECE': OfClasses(classwise_error),
    'MCE': OfBins(errors.binned_maximum_error),
    'RMSCE': OfBins(errors.binned_root_mean_square_error),
    'OE': OfBins(errors.binned_overconfidence_error),
    'NLL': OfMean('nll', highest=math.inf),
    'Brier': OfMean('brier', highest=2.0),
    'accuracy': OfMean('correct', factor=100.0),
    'confidence': OfMean('conf', factor=100.0),
}
NAMES = tuple(DEFINITIONS)
