"""Tables of independent units, such as images or groups of them, which a bootstrap resamples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mmcalib.metrics.bins import bin_index, bin_table
from mmcalib.metrics.counts import MOST_CLASSES, Counts, class_table
from mmcalib.metrics.outcomes import Outcomes
from mmcalib.predictions.image_predictions import ImagePredictions

# Tables that metrics are formulas of, see UnitTables.table.
TABLES = ('bins', 'class_bins', 'class_totals')


class UnitTables(NamedTuple):
    """The tables of one model for U units.

    Attributes:
        bins: ``(U, 3, B)`` float64 bins of equal width: count, correct, sum of confidences.
        sums: ``(U, 2)`` float64 sums of NLL and Brier score.
        class_bins: ``(U, 3, K, B)`` float64 bins of the probability of each class: count, labels of
            this class, sum of probabilities; None if they are not kept, as of many classes.
    """

    bins: Tensor
    sums: Tensor
    class_bins: Tensor | None = None

    @classmethod
    def from_bins(cls, bins: Tensor) -> UnitTables:
        """Return the tables of units of which bins alone are known, with sums of 0."""
        return cls(bins, bins.new_zeros(len(bins), 2))

    @classmethod
    def from_counts(cls, units: Sequence[Counts]) -> UnitTables:
        """Return the tables of units by the counts of each, at least one."""
        class_bins = None
        if units[0].class_bins is not None:
            class_bins = torch.stack([unit.class_bins for unit in units])
        return cls(
            torch.stack([unit.bins for unit in units]),
            torch.stack([unit.sums for unit in units]),
            class_bins,
        )

    def table(self, kind: str) -> Tensor | None:
        """Return the ``(U, 3, *)`` table that a metric is a formula of; None if it is not kept.

        Args:
            kind: See :func:`~mmcalib.metrics.counts.class_table`; or ``'bins'``.
        """
        if kind == 'bins':
            return self.bins
        return None if self.class_bins is None else class_table(self.class_bins, kind)

    def select(self, kept: Tensor) -> UnitTables:
        """Return the tables of some units, by a mask."""
        return UnitTables(*(None if table is None else table[kept] for table in self))

    def filled(self) -> UnitTables:
        """Return the tables of the units that hold predictions."""
        return self.select(self.bins[:, 0].sum(dim=1) > 0)

    def sum_by(self, index: Tensor) -> UnitTables:
        """Return the sums of units that have the same index, ``(U,)`` int64 from 0 on."""
        return UnitTables(*(None if table is None else sum_rows(table, index) for table in self))


def concatenate_tables(parts: Sequence[UnitTables]) -> UnitTables:
    """Return the tables of all units of the parts, at least one."""
    columns = zip(*parts, strict=True)
    return UnitTables(*(None if column[0] is None else torch.cat(column) for column in columns))


def tables_of_rows(
    part: ImagePredictions, outcomes: Outcomes, num_bins: int
) -> tuple[Tensor, UnitTables]:
    """Return the indices ``(U,)`` of the images that rows are of, and the tables of these images.

    Args:
        part: Rows, each of one prediction or of several labels.
        outcomes: Their outcomes.
        num_bins: B.
    """
    images, image_index = part.images.unique(return_inverse=True)
    num_images = len(images)
    index = image_index[part.valid.cpu().nonzero()[:, 0]]
    position = index * num_bins + bin_index(outcomes.conf, num_bins)
    bins = bin_table(position, outcomes.conf, outcomes.correct, num_images, num_bins)
    brier = torch.zeros_like(outcomes.nll) if outcomes.brier is None else outcomes.brier
    sums = torch.stack([outcomes.nll, brier], dim=1)
    sums = sums.new_zeros(num_images, 2).index_add_(0, index, sums)
    if outcomes.class_bins is None or part.num_classes > MOST_CLASSES:
        return images, UnitTables(bins.transpose(0, 1), sums)
    probs = part.class_probabilities().movedim(1, -1)[part.valid].cpu()
    num_classes = probs.shape[1]
    classes = torch.arange(num_classes, device='cpu')
    is_label = part.labels[part.valid].cpu()[:, None] == classes
    position = (index[:, None] * num_classes + classes) * num_bins + bin_index(probs, num_bins)
    class_bins = bin_table(
        position.flatten(), probs.flatten(), is_label.flatten(), num_images, num_classes, num_bins
    )
    return images, UnitTables(bins.transpose(0, 1), sums, class_bins.transpose(0, 1))


def sum_rows(values: Tensor, index: Tensor) -> Tensor:
    """Return the sums ``(G, *)`` of values ``(U, *)`` that have the same index, from 0 on."""
    size = int(index.max()) + 1 if len(index) else 0
    return values.new_zeros(size, *values.shape[1:]).index_add_(0, index, values)
