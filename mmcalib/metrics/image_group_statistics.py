"""Statistics that are too large for each image, of some images together."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from mmcalib.metrics.bins.classwise_bins import ClasswiseBins
from mmcalib.metrics.bins.classwise_narrow_bins import LEAST_BITS, ClasswiseNarrowBins
from mmcalib.metrics.bins.conventions import Convention
from mmcalib.metrics.bins.narrow_bins import ConfidenceBins, RankBins
from mmcalib.metrics.metric_definitions import OfClasses, OfClassNarrowBins, OfNarrowBins
from mmcalib.samples.predictions import Prediction


class GroupStatistics:
    """Of some images together, what is too large to keep for each of them.

    Args:
        num_bins: B.
        convention: Of the bins.
        narrow_bins: Empty, to be filled; None if no metric is of narrow bins.
        ranks: Likewise of metrics of the order of predictions.
        classwise: Whether to count the probabilities of all classes in bins.
        floors: Of the narrow bins to count them in too.
        few_bins: Of which there are to be few.
    """

    def __init__(
        self,
        num_bins: int,
        convention: Convention,
        *,
        narrow_bins: ConfidenceBins | None,
        ranks: RankBins | None = None,
        classwise: bool,
        floors: Sequence[float] = (),
        few_bins: bool = False,
    ) -> None:
        self.narrow_bins = narrow_bins
        self._ranks = ranks
        self._num_bins = num_bins
        self._convention = convention
        self.num_images = 0
        self._classwise = classwise
        self._class_bins: ClasswiseBins | None = None
        self._floors = floors
        self._few_bins = few_bins
        self._class_narrow_bins: dict[float, ClasswiseNarrowBins] = {}

    def add(self, conf: Tensor, correct: Tensor, prediction: Prediction) -> GroupStatistics:
        """Count the predictions of an image, and return self."""
        self.num_images += 1
        if self.narrow_bins is not None:
            self.narrow_bins.add(conf, correct)
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
            if floor not in self._class_narrow_bins:
                bits = LEAST_BITS if self._few_bins else None
                num_classes = len(prediction.classes.labels)
                self._class_narrow_bins[floor] = ClasswiseNarrowBins(num_classes, floor, bits=bits)
            self._class_narrow_bins[floor].add(prediction.classes)
        return self

    def merge(self, other: GroupStatistics) -> GroupStatistics:
        """Add everything that `other` holds, and return self."""
        self.num_images += other.num_images
        if self.narrow_bins is not None:
            self.narrow_bins.merge(other.narrow_bins)
        if self._ranks is not None:
            self._ranks.merge(other._ranks)
        if other._class_bins is not None:
            if self._class_bins is None:
                self._class_bins = copy.deepcopy(other._class_bins)
            else:
                self._class_bins.merge(other._class_bins)
        for floor, narrow_bins in other._class_narrow_bins.items():
            own = self._class_narrow_bins.get(floor)
            self._class_narrow_bins[floor] = (
                copy.deepcopy(narrow_bins) if own is None else own.merge(narrow_bins)
            )
        return self

    def values(self, definitions: Iterable[OfNarrowBins | OfClasses | OfClassNarrowBins]) -> Tensor:
        """Return the ``(L, 2)`` values of metrics and what they may be off by, NaN if exact."""
        found = []
        for definition in definitions:
            if isinstance(definition, OfClasses):
                table = self._class_bins and self._class_bins.table()
                value, bound = definition.value(table, self._convention), torch.nan
            elif isinstance(definition, OfClassNarrowBins):
                narrow_bins = self._class_narrow_bins.get(definition.floor)
                value = bound = torch.nan
                if narrow_bins is not None:
                    value, bound = definition.value(narrow_bins, self._num_bins)
            else:
                narrow_bins = self._ranks if definition.ranks else self.narrow_bins
                value, bound = definition.value(narrow_bins, self._num_bins, self._convention)
                bound = torch.nan if narrow_bins.exact else bound
            found.append((value, bound))
        return torch.tensor(found, dtype=torch.float64).view(-1, 2)
