"""Every class's probabilities in narrow bins: for errors over bins of equal count.

What is at most a floor is one bin, of which counts and sums are known.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.metrics.bins.bin_tables import add_to, bins_between
from mmcalib.metrics.bins.binned_errors import binned_calibration_error, edge_shifts
from mmcalib.metrics.bins.conventions import MMCALIB
from mmcalib.metrics.bins.narrow_bins import narrow_bin_of, num_narrow_bins
from mmcalib.samples.predictions import ClassProbabilities, places_of

# Columns of all classes together, of which each class has as many as are left to it.
COLUMNS = 1 << 18
MOST_BITS, LEAST_BITS = 6, 3


class ClasswiseNarrowBins:
    """Counts the probabilities of K classes in bins that ascend in them, in constant memory.

    The bins have the same ratio of their ends to 0 below one half, and to 1 above.

    Args:
        num_classes: K.
        floor: What is at most this is in the first bin.
        bits: The bins are ``2**bits`` to each halving; as many as fit if None.
    """

    def __init__(self, num_classes: int, floor: float, *, bits: int | None = None) -> None:
        if bits is None:
            bits = LEAST_BITS
            while bits < MOST_BITS and num_classes * _size(floor, bits + 1) <= COLUMNS:
                bits += 1
        self.floor, self.bits = floor, bits
        size = _size(floor, bits)
        self._tables = torch.zeros(3, num_classes, size, dtype=torch.float64)
        self._extremes = torch.full((2, num_classes, size), float('inf'))

    def add(self, classes: ClassProbabilities) -> ClasswiseNarrowBins:
        """Count the predictions of an image, listed down to the floor at least; return self."""
        # All in the first bin, until what is listed above the floor is taken out of it.
        self._tables[0, :, 0] += classes.count
        self._tables[1, :, 0] += classes.labels
        self._tables[2, :, 0] += classes.below
        for klass, prob, is_label in classes.pieces():
            above, rest = places_of(prob > self.floor), places_of(prob <= self.floor)
            self._tables[2, :, 0].index_add_(0, klass[rest], prob[rest].double())
            self._add_above(klass[above], prob[above], is_label[above])
        return self

    def _add_above(self, klass: Tensor, prob: Tensor, is_label: Tensor) -> None:
        _, num_classes, size = self._tables.shape
        index = klass * size + _bin_of(prob, self.floor, self.bits)
        add_to(self._tables.view(3, -1), index, prob, is_label)
        both = torch.stack([prob, -prob]).float()
        self._extremes.view(2, -1).scatter_reduce_(1, index.expand(2, -1), both, 'amin')
        self._tables[0, :, 0] -= torch.bincount(klass, minlength=num_classes)
        own = klass[places_of(is_label)]
        self._tables[1, :, 0] -= torch.bincount(own, minlength=num_classes)

    def merge(self, other: ClasswiseNarrowBins) -> ClasswiseNarrowBins:
        """Add everything that `other` holds, and return self."""
        self._tables += other._tables
        self._extremes = torch.minimum(self._extremes, other._extremes)
        return self

    def error(self, num_bins: int, *, above_floor: bool = False) -> tuple[float, float]:
        """Return the mean over classes of the error over bins of equal count, and its bound.

        Args:
            num_bins: B.
            above_floor: Leave out what is not above the floor, and classes of which nothing is.
        """
        first = 1 if above_floor else 0
        lowest, negated_highest = self._extremes.double()
        spread = torch.where(self._tables[0] > 0, -negated_highest - lowest, 0)
        spread[:, 0] = torch.where(self._tables[0, :, 0] > 0, self.floor, 0)
        found = [
            adaptive_error(table, own, num_bins)
            for table, own in zip(
                self._tables[:, :, first:].unbind(1), spread[:, first:], strict=True
            )
            if table[0].any()
        ]
        if not found:
            return float('nan'), float('nan')
        value, bound = torch.tensor(found, dtype=torch.float64).mean(dim=0).tolist()
        return value, bound

    def __getstate__(self) -> dict:
        """Leave empty bins out, of which there are most."""
        full = self._tables[0].flatten().nonzero().squeeze(1)
        shape = self._tables.shape[1:]
        kept = self._tables.flatten(1)[:, full], self._extremes.flatten(1)[:, full]
        return dict(floor=self.floor, bits=self.bits, shape=shape, full=full, kept=kept)

    def __setstate__(self, state: dict) -> None:
        self.floor, self.bits = state['floor'], state['bits']
        self._tables = torch.zeros(3, *state['shape'], dtype=torch.float64)
        self._extremes = torch.full((2, *state['shape']), float('inf'))
        self._tables.flatten(1)[:, state['full']] = state['kept'][0]
        self._extremes.flatten(1)[:, state['full']] = state['kept'][1]


def adaptive_error(table: Tensor, spread: Tensor, num_bins: int) -> tuple[float, float]:
    r"""Return the error over bins of equal count and the bound on its deviation, in percent.

    As :func:`~mmcalib.metrics.bins.binned_errors.equal_mass_error`, but for a tighter bound where
    several edges cut a bin: whatever they make of its a labels and sum c of probabilities, it adds
    between 0 and a + c to the error in place of at most \|a - c\|.

    Args:
        table: ``(3, C)`` table of bins, ascending in probability.
        spread: ``(C,)`` largest less smallest probability in each bin.
        num_bins: B.
    """
    full = table[0] > 0
    table, spread = table[:, full], spread[full]
    positions = MMCALIB.positions(table, spread == 0, num_bins)
    error = binned_calibration_error(bins_between(table, positions)).item()
    mass = table[0].cumsum(0)
    cut, off = edge_shifts(table, spread, positions)
    shifts = torch.zeros_like(mass).index_add_(0, cut, off)
    shifts = torch.minimum(shifts, 2 * torch.maximum(table[1], table[2]))
    return error, min(100 * (shifts.sum() / mass[-1]).item(), max(error, 100 - error))


def _code(prob: Tensor, bits: int) -> Tensor:
    return prob.float().view(torch.int32).long() >> (23 - bits)


def _lower_half(floor: float, bits: int) -> tuple[int, int]:
    """Return the code of the floor, and the number of bins from there to one half."""
    ends = _code(torch.tensor([floor, 0.5]), bits).tolist()
    return ends[0], ends[1] - ends[0]


def _size(floor: float, bits: int) -> int:
    half = narrow_bin_of(torch.tensor([0.5]), bits).item()
    return 1 + _lower_half(floor, bits)[1] + num_narrow_bins(bits) - half


def _bin_of(prob: Tensor, floor: float, bits: int) -> Tensor:
    """Return the bin of each probability above the floor; bins ascend in it."""
    first, count = _lower_half(floor, bits)
    half = narrow_bin_of(torch.tensor([0.5]), bits)
    upper = count + narrow_bin_of(prob, bits) - half
    return 1 + torch.where(prob.float() < 0.5, _code(prob, bits) - first, upper)
