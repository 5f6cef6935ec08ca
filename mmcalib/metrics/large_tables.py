"""The statistics that are too large to keep for every image."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import Tensor

from mmcalib.metrics import calibration_errors
from mmcalib.metrics.bin_conventions import Convention
from mmcalib.metrics.bin_tables import bins_between, classwise_bins
from mmcalib.metrics.confidence_cells import ConfidenceCells
from mmcalib.metrics.data_samples import Prediction

# There may be a table for each batch of images: few confidences are kept as they are, and many in
# cells of 1 % of their distance from 1.
GROUP_LIMIT = 1 << 14
GROUP_BITS = 7


class LargeTables:
    """Cells of confidence for AECE, and bins of every class for class-wise ECE.

    Args:
        num_bins: B.
        convention: Of the bins.
        cells: Whether AECE, or the statistics for diagrams, are wanted.
        classwise: Whether class-wise ECE is.
        one_of_many: Keep fewer confidences as they are, and have fewer cells.
    """

    def __init__(
        self,
        num_bins: int,
        convention: Convention,
        *,
        cells: bool = False,
        classwise: bool = False,
        one_of_many: bool = False,
    ) -> None:
        self.num_bins = num_bins
        self.convention = convention
        self._options = dict(cells=cells, classwise=classwise, one_of_many=one_of_many)
        self.cells = None
        if cells:
            limited = dict(exact_limit=GROUP_LIMIT, bits=GROUP_BITS) if one_of_many else {}
            self.cells = ConfidenceCells(**limited)
        self.classwise: Tensor | None = None
        self.highest_label = -1

    def empty(self) -> LargeTables:
        """Return tables of the same kind that hold nothing."""
        return LargeTables(self.num_bins, self.convention, **self._options)

    def add(self, prediction: Prediction) -> None:
        """Count the predictions of an image."""
        if self.cells is not None:
            self.cells.add(prediction.conf, prediction.correct)
        if self._options['classwise']:
            self.classwise = classwise_bins(
                prediction.probs,
                prediction.label,
                self.num_bins,
                convention=self.convention,
                out=self.classwise,
            )
            if prediction.label.numel():
                self.highest_label = max(self.highest_label, int(prediction.label.max()))

    def merge(self, other: LargeTables) -> LargeTables:
        """Add everything that `other` holds, and return self."""
        if self.cells is not None:
            self.cells.merge(other.cells)
        if other.classwise is not None:
            if self.classwise is None:
                self.classwise = torch.zeros_like(other.classwise)
            self.classwise += other.classwise
        self.highest_label = max(self.highest_label, other.highest_label)
        return self

    def compact(self) -> None:
        """Make the pickle small."""
        if self.cells is not None:
            self.cells.compact()

    def values(self, names: Collection[str]) -> dict[str, float]:
        """Return AECE, with its bound where it is not exact, and class-wise ECE, if named."""
        values = {}
        if 'AECE' in names:
            table, spread = self.cells.table(), self.cells.spread()
            positions = self.convention.positions(table, spread == 0, self.num_bins)
            _, correct, conf = bins_between(table, positions)
            gaps = correct - conf
            # Not over the bins' own count: the published convention loses the least confident.
            values['AECE'] = (100 * gaps.abs().sum() / table[0].sum()).item()
            if not self.cells.exact:
                bound = calibration_errors.equal_mass_error_bound(
                    table, spread, positions, shares_ties=self.convention.shares_ties
                ).item()
                # The error lies between 0 and 100 in any case.
                values['AECE_bound'] = min(bound, max(values['AECE'], 100 - values['AECE']))
        if 'ClasswiseECE' in names:
            values['ClasswiseECE'] = self._classwise_error()
        return values

    def _classwise_error(self) -> float:
        if self.classwise is None:
            return float('nan')
        seen = self.highest_label + 1 if self.convention.only_seen_classes else None
        return calibration_errors.classwise_calibration_error(self.classwise[:, :seen]).item()


def merged(tables: Iterable[LargeTables]) -> LargeTables | None:
    """Return the sum of some tables, None of none."""
    total = None
    for table in tables:
        total = (total or table.empty()).merge(table)
    return total
