"""Every class's probabilities in bins of equal width: for class-wise ECE."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.metrics.bins.bin_tables import add_to, floor_of
from mmcalib.metrics.bins.conventions import MMCALIB, Convention
from mmcalib.samples.predictions import ClassProbabilities, of_probabilities


class ClasswiseBins:
    """Counts the probabilities of K classes in bins of equal width.

    What lies below the floor is in the first bin, and is put there only when asked for: a single
    prediction of 10,000 classes would else write to 10,000 places.

    Args:
        num_classes: K.
        num_bins: B.
        convention: Another one's edges, which may have a bin more.
    """

    def __init__(
        self, num_classes: int, num_bins: int, *, convention: Convention = MMCALIB
    ) -> None:
        self._num_bins = num_bins
        self._convention = convention
        size = convention.num_columns(num_bins)
        self._listed = torch.zeros(3, num_classes, size, dtype=torch.float64)
        # Of all: count, how many are of that class; and the sum of what is below the floor.
        self._all = torch.zeros(3, num_classes, dtype=torch.float64)

    def add(self, classes: ClassProbabilities) -> ClasswiseBins:
        """Count predictions, with a floor of at most that of the bins, and return self."""
        for klass, prob, is_label in classes.pieces():
            index = klass * self._listed.shape[2]
            index += self._convention.bin_of(prob, self._num_bins)
            add_to(self._listed.view(3, -1), index, prob, is_label)
        self._all[0] += classes.count
        self._all[1] += classes.labels
        self._all[2] += classes.below
        return self

    def merge(self, other: ClasswiseBins) -> ClasswiseBins:
        """Add everything that `other` holds, and return self."""
        self._listed += other._listed
        self._all += other._all
        return self

    def table(self) -> Tensor:
        """Return the ``(3, K, B)`` counts, how many are of that class, sums of probabilities."""
        table = self._listed.clone()
        table[:2, :, 0] += self._all[:2] - self._listed[:2].sum(dim=2)
        table[2, :, 0] += self._all[2]
        return table


def classwise_bins(
    probs: Tensor, label: Tensor, num_bins: int, *, convention: Convention = MMCALIB
) -> Tensor:
    """Count, for every class, the probabilities that it was given in bins of equal width.

    Args:
        probs: ``(K, M)`` probabilities.
        label: ``(M,)`` true classes.
        num_bins: B.
        convention: As for :func:`~mmcalib.metrics.bins.bin_tables.equal_width_bins`.

    Returns:
        ``(3, K, B)`` float64 table: count, how many are of that class, sum of probabilities.
    """
    prediction = of_probabilities(probs, label, wanted={'classes'}, floor=floor_of(num_bins))
    bins = ClasswiseBins(len(probs), num_bins, convention=convention)
    return bins.add(prediction.classes).table()
