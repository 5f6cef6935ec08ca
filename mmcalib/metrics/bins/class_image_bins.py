"""The confidences of each image in a few bins, for each class apart: for a threshold of a class."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.metrics.bins.growing_array import GrowingArray
from mmcalib.metrics.bins.image_bins import BITS, NUM_NARROW_BINS
from mmcalib.metrics.bins.narrow_bins import narrow_bin_of


class ClassImageBins:
    """Counts of each class in each image that has it, predicted or true."""

    def __init__(self) -> None:
        self._keys = GrowingArray(2, dtype=torch.int64)
        self._bins = GrowingArray(3, NUM_NARROW_BINS, dtype=torch.int32)

    def add(
        self,
        places: Tensor,
        num_classes: int,
        *,
        predicted: Tensor,
        label: Tensor,
        conf: Tensor,
        own: Tensor,
    ) -> ClassImageBins:
        """Count ``(M,)`` predictions, and return self.

        Args:
            places: ``(M,)`` or ``()`` int64 places of their images.
            num_classes: K.
            predicted, label: ``(M,)`` int64 classes.
            conf: ``(M,)`` probabilities of the predicted classes.
            own: ``(M,)`` probabilities of the true classes.
        """
        codes = torch.stack([places * num_classes + classes for classes in (predicted, label)])
        keys, row = codes.unique(return_inverse=True)
        right = predicted == label
        columns = narrow_bin_of(conf, BITS), narrow_bin_of(1 - own.double(), BITS)
        index = torch.cat([
            row[0] * 3 * NUM_NARROW_BINS + columns[0],
            (row[0][right] * 3 + 1) * NUM_NARROW_BINS + columns[0][right],
            (row[1] * 3 + 2) * NUM_NARROW_BINS + columns[1],
        ])  # fmt: skip
        counts = torch.bincount(index, minlength=len(keys) * 3 * NUM_NARROW_BINS)
        self._keys.append(torch.stack([keys // num_classes, keys % num_classes], dim=1))
        self._bins.append(counts.view(-1, 3, NUM_NARROW_BINS).int())
        return self

    def merge(self, other: ClassImageBins) -> ClassImageBins:
        """Add everything that `other` holds, and return self."""
        self._keys.append(other._keys.rows)
        self._bins.append(other._bins.rows)
        return self

    def table(self) -> tuple[Tensor, Tensor]:
        """Return what was counted, in the order of the data set and of the classes.

        Returns:
            ``(R, 2)`` int64, the place of an image in the data set and a class; and ``(R, 3, C)``
            int32: how many labelled predictions of this class are in each narrow bin of
            :mod:`~mmcalib.metrics.bins.image_bins`, how many of them are right, and, in the bins of
            1 less the probability of this class, how many pixels are truly of it.
        """
        keys, bins = self._keys.rows, self._bins.rows
        order = (keys[:, 0] * (keys[:, 1].max() + 1 if len(keys) else 1) + keys[:, 1]).argsort()
        return keys[order], bins[order]
