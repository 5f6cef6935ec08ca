"""Statistics that are too large for each image, of some images together."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from mmcalib.metrics.bins.classwise_bins import ClasswiseBins
from mmcalib.metrics.bins.classwise_narrow_bins import LEAST_BITS, ClasswiseCells
from mmcalib.metrics.bins.conventions import Convention
from mmcalib.metrics.bins.narrow_bins import ConfidenceCells, RankCells
from mmcalib.metrics.metric_definitions import OfCells, OfClassCells, OfClasses
from mmcalib.samples.predictions import Prediction


class GroupStatistics:
    """Of some images together, what is too large to keep for each of them.

    Args:
        num_bins: B.
        convention: Of the bins.
        cells: Empty, to be filled; None if no metric is of cells.
        ranks: Likewise of metrics of the order of predictions.
        classwise: Whether to count the probabilities of all classes in bins.
        floors: Of the cells to count them in too.
        few_cells: Of which there are to be few.
    """

    def __init__(
        self,
        num_bins: int,
        convention: Convention,
        *,
        cells: ConfidenceCells | None,
        ranks: RankCells | None = None,
        classwise: bool,
        floors: Sequence[float] = (),
        few_cells: bool = False,
    ) -> None:
        self.cells = cells
        self._ranks = ranks
        self._num_bins = num_bins
        self._convention = convention
        self.num_images = 0
        self._classwise = classwise
        self._class_bins: ClasswiseBins | None = None
        self._floors = floors
        self._few_cells = few_cells
        self._class_cells: dict[float, ClasswiseCells] = {}

    def add(self, conf: Tensor, correct: Tensor, prediction: Prediction) -> GroupStatistics:
        """Count the predictions of an image, and return self."""
        self.num_images += 1
        if self.cells is not None:
            self.cells.add(conf, correct)
        if self._ranks is not None:
            doubt = 1 - conf.double() if prediction.doubt is None else prediction.doubt
            self._ranks.add(-doubt, correct)
        if self._classwise:
            if self._class_bins is None:
                self._class_bins = ClasswiseBins(
                    len(prediction.classes.labels), self._num_bins, convention=self._convention
                )
            self._class_bins.add(prediction.classes)
        for floor in self._floors:
            if floor not in self._class_cells:
                bits = LEAST_BITS if self._few_cells else None
                num_classes = len(prediction.classes.labels)
                self._class_cells[floor] = ClasswiseCells(num_classes, floor, bits=bits)
            self._class_cells[floor].add(prediction.classes)
        return self

    def merge(self, other: GroupStatistics) -> GroupStatistics:
        """Add everything that `other` holds, and return self."""
        self.num_images += other.num_images
        if self.cells is not None:
            self.cells.merge(other.cells)
        if self._ranks is not None:
            self._ranks.merge(other._ranks)
        if other._class_bins is not None:
            if self._class_bins is None:
                self._class_bins = copy.deepcopy(other._class_bins)
            else:
                self._class_bins.merge(other._class_bins)
        for floor, cells in other._class_cells.items():
            own = self._class_cells.get(floor)
            self._class_cells[floor] = copy.deepcopy(cells) if own is None else own.merge(cells)
        return self

    def values(self, definitions: Iterable[OfCells | OfClasses | OfClassCells]) -> Tensor:
        """Return the ``(L, 2)`` values of metrics and what they may be off by, NaN if exact."""
        found = []
        for definition in definitions:
            if isinstance(definition, OfClasses):
                table = self._class_bins and self._class_bins.table()
                value, bound = definition.value(table, self._convention), torch.nan
            elif isinstance(definition, OfClassCells):
                cells = self._class_cells.get(definition.floor)
                value = bound = torch.nan
                if cells is not None:
                    value, bound = definition.value(cells, self._num_bins)
            else:
                cells = self._ranks if definition.ranks else self.cells
                value, bound = definition.value(cells, self._num_bins, self._convention)
                bound = torch.nan if cells.exact else bound
            found.append((value, bound))
        return torch.tensor(found, dtype=torch.float64).view(-1, 2)
