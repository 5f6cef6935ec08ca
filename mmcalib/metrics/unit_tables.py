"""Tables of independent units, such as images or groups of them, which a bootstrap resamples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mmcalib.metrics.bins import bin_index, bin_table
from mmcalib.metrics.counts import tables_by_group
from mmcalib.metrics.outcomes import Outcomes
from mmcalib.predictions.image_predictions import ImagePredictions

# The bins of each class are kept of so many classes: 11 kB of a unit, for 30 classes and 15 bins.
MOST_CLASSES = 30

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

    def table(self, kind: str) -> Tensor | None:
        """Return the ``(U, 3, *)`` table that a metric is a formula of; None if it is not kept.

        Args:
            kind: See :func:`class_table`; or ``'bins'``.
        """
        if kind == 'bins':
            return self.bins
        return None if self.class_bins is None else class_table(self.class_bins, kind)

    def select(self, kept: Tensor) -> UnitTables:
        """Return the tables of some units, by a mask."""
        class_bins = None if self.class_bins is None else self.class_bins[kept]
        return UnitTables(self.bins[kept], self.sums[kept], class_bins)

    def filled(self) -> UnitTables:
        """Return the tables of the units that hold predictions."""
        return self.select(self.bins[:, 0].sum(dim=1) > 0)

    def sum_by(self, index: Tensor) -> UnitTables:
        """Return the sums of units that have the same index, ``(U,)`` int64 from 0 on."""
        class_bins = None if self.class_bins is None else sum_rows(self.class_bins, index)
        return UnitTables(sum_rows(self.bins, index), sum_rows(self.sums, index), class_bins)


def concatenate_tables(parts: Sequence[UnitTables]) -> UnitTables:
    """Return the tables of all units of the parts, at least one."""
    class_bins = None
    if parts[0].class_bins is not None:
        class_bins = torch.cat([part.class_bins for part in parts])
    return UnitTables(
        torch.cat([part.bins for part in parts]),
        torch.cat([part.sums for part in parts]),
        class_bins,
    )


def tables_by_image(
    part: ImagePredictions,
    outcomes: Outcomes,
    image_index: Tensor,
    num_images: int,
    num_bins: int,
) -> UnitTables:
    """Return the tables of the images of a part: a map, or rows.

    Args:
        part: Predictions of U images.
        outcomes: Their outcomes.
        image_index: ``(N,)`` int64 image of each entry, from 0 to U - 1.
        num_images: U.
        num_bins: B.
    """
    valid = part.valid.cpu()
    predictions_per_row = valid[0].numel() if len(valid) else 1
    index = image_index.repeat_interleave(predictions_per_row)[valid.flatten()]
    bins, sums = tables_by_group(outcomes, index, num_images, num_bins)
    class_bins = outcomes.class_bins
    if class_bins is None or part.num_classes > MOST_CLASSES:
        return UnitTables(bins, sums)
    if part.are_maps:
        return UnitTables(bins, sums, class_bins[None])
    probs = part.class_probabilities().movedim(1, -1)[part.valid].cpu()
    num_classes = probs.shape[1]
    classes = torch.arange(num_classes, device='cpu')
    is_label = part.labels[part.valid].cpu()[:, None] == classes
    position = (index[:, None] * num_classes + classes) * num_bins + bin_index(probs, num_bins)
    class_bins = bin_table(
        position.flatten(), probs.flatten(), is_label.flatten(), num_images, num_classes, num_bins
    )
    return UnitTables(bins, sums, class_bins.transpose(0, 1))


def class_table(class_bins: Tensor, kind: str) -> Tensor:
    """Return the ``(…, 3, *)`` table of the ``(…, 3, K, B)`` bins of all classes.

    Args:
        class_bins: Bins of the probability of each class.
        kind: ``'class_bins'`` for all of them, ``(…, 3, K B)``, or ``'class_totals'`` for the sums
            of each class, ``(…, 3, K)``.
    """
    return class_bins.sum(dim=-1) if kind == 'class_totals' else class_bins.flatten(-2)


def sum_rows(values: Tensor, index: Tensor) -> Tensor:
    """Return the sums ``(G, *)`` of values ``(U, *)`` that have the same index, from 0 on."""
    size = int(index.max()) + 1 if len(index) else 0
    return values.new_zeros(size, *values.shape[1:]).index_add_(0, index, values)
