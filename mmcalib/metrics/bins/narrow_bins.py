"""Confidences in constant memory: as they are while few, in narrow bins when many."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.metrics.bins.growing_array import GrowingArray

# Up to this many confidences AECE is exact; above, they are counted in bins.
EXACT_LIMIT = 1_000_000
# Confidences that are counted together: of a million, what is made for it would take 40 MB.
PIECE = 1 << 16
# A bin holds the values of 1 - confidence that share their float32 exponent and the first bits of
# their mantissa. That spaces bins in log(1 - confidence), so a saturated network, whose
# confidences crowd just below 1, still spreads over thousands of them.
NARROW_BITS = 12
OCTAVES = 24  # from 1 down to 2^-24, the last step before 1 in float32
# Likewise of 1 - confidence that is not rounded to float32: further octaves, in fewer bins each.
RANK_OCTAVES, RANK_BITS = 102, 6
SCORE_OCTAVES = OCTAVES + 16  # from 2^-24 up to 2^16; logits beyond share the last bin
# Fine enough for a diagram of any number of bins, and at most 6,146 bins.
CONDENSED_BITS = 8


class ConfidenceBins:
    """Confidences and their correctness, exact while few and in bins when many.

    Constant memory: up to `exact_limit` values are kept as they are, after which only counts in
    bins are. The switch depends on the number of values alone, so any split of the same values,
    merged in any order, ends in the same bins.

    Args:
        exact_limit: How many values are kept as they are; ``EXACT_LIMIT`` if None.
        bits: The bins are ``2**bits`` to each halving of 1 - confidence.
    """

    dtype = torch.float32  # of the values that are kept as they are

    def __init__(self, *, exact_limit: int | None = None, bits: int = NARROW_BITS) -> None:
        self.count = 0
        self.bits = bits
        self._limit = EXACT_LIMIT if exact_limit is None else exact_limit
        self._conf = GrowingArray(dtype=self.dtype)
        self._correct = GrowingArray(dtype=torch.bool)
        self._table: Tensor | None = None
        self._lowest: Tensor | None = None  # confidence in each bin
        self._highest: Tensor | None = None

    def add(self, conf: Tensor, correct: Tensor) -> ConfidenceBins:
        """Add ``(M,)`` confidences and ``(M,)`` booleans, both on the CPU."""
        self.count += conf.numel()
        if self.exact and self.count <= self._limit:
            self._conf.append(conf)
            self._correct.append(correct)
            return self
        self._coarsen()
        self._add_fine(conf, correct)
        return self

    def merge(self, other: ConfidenceBins) -> ConfidenceBins:
        """Add everything that `other` holds, and return self."""
        if other.exact:
            return self.add(other._conf.rows, other._correct.rows)
        self._coarsen()
        self.count += other.count
        self._table += other._table
        torch.minimum(self._lowest, other._lowest, out=self._lowest)
        torch.maximum(self._highest, other._highest, out=self._highest)
        return self

    @property
    def exact(self) -> bool:
        """Whether the bins are the distinct confidences themselves."""
        return self._table is None

    def table(self) -> Tensor:
        """Return the ``(3, C)`` table of the bins, ascending in confidence."""
        if not self.exact:
            return self._table
        if not len(self._conf):
            return torch.zeros(3, 1, dtype=torch.float64)
        conf = self._conf.rows.double()
        values, index = conf.unique(return_inverse=True)
        return table_of(index, conf, self._correct.rows, len(values))

    def spread(self) -> Tensor:
        """Return the largest less the smallest confidence in each bin, ``(C,)``."""
        if self.exact:
            return torch.zeros(self.table().shape[1], dtype=torch.float64)
        return torch.where(self._table[0] > 0, self._highest - self._lowest, 0)

    def _coarsen(self) -> None:
        """Go from kept values to bins, if that has not been done."""
        if not self.exact:
            return
        self._make_fine()
        self._add_fine(self._conf.rows, self._correct.rows)
        self._conf, self._correct = GrowingArray(), GrowingArray(dtype=torch.bool)

    def _make_fine(self) -> None:
        size = self._num_bins_of()
        self._table = torch.zeros(3, size, dtype=torch.float64)
        self._lowest = torch.full((size,), float('inf'), dtype=torch.float64)
        self._highest = torch.full((size,), -float('inf'), dtype=torch.float64)

    def _add_fine(self, conf: Tensor, correct: Tensor) -> None:
        for start in range(0, len(conf), PIECE):
            part = conf[start : start + PIECE]
            index, values = self._bin_of(part), part.double()
            add_to(self._table, index, values, correct[start : start + PIECE])
            self._lowest.scatter_reduce_(0, index, values, 'amin')
            self._highest.scatter_reduce_(0, index, values, 'amax')

    def _num_bins_of(self) -> int:
        return num_narrow_bins(self.bits)

    def _bin_of(self, conf: Tensor) -> Tensor:
        return narrow_bin_of(conf, self.bits)

    def __getstate__(self) -> dict:
        """Leave empty bins out, of which there are most."""
        state = dict(self.__dict__)
        if not self.exact:
            full = self._table[0].nonzero().squeeze(1)
            columns = torch.cat([self._table, self._lowest[None], self._highest[None]])[:, full]
            state |= dict(_table=None, _lowest=None, _highest=None, _full=(full, columns))
        return state

    def __setstate__(self, state: dict) -> None:
        full, columns = state.pop('_full', (None, None))
        self.__dict__.update(state)
        if full is not None:
            self._make_fine()
            self._table[:, full] = columns[:3]
            self._lowest[full], self._highest[full] = columns[3:]


class RankBins(ConfidenceBins):
    """Likewise confidence - 1 in float64, told apart down to 2^-126 below 0.

    The bins are those of :class:`ConfidenceBins`, but for its last one, which holds all that
    float32 rounds to a confidence of 1.
    """

    dtype = torch.float64

    def _num_bins_of(self) -> int:
        return (RANK_OCTAVES << RANK_BITS) + (OCTAVES << self.bits) + 1

    def _bin_of(self, conf: Tensor) -> Tensor:
        code = conf.neg().float().view(torch.int32)
        deep = (code >> (23 - RANK_BITS)) - (1 << RANK_BITS)
        upper = (code >> (23 - self.bits)) - ((127 - OCTAVES) << self.bits)
        narrow_bin = torch.where(upper < 0, deep.clamp(min=0), upper + (RANK_OCTAVES << RANK_BITS))
        return narrow_bin.neg_().add_(self._num_bins_of() - 1).clamp_(min=0).long()


class ScoreBins(ConfidenceBins):
    """Likewise scores that may be any number, such as logits, in bins that are narrow around 0.

    A bin holds the values that share sign, float32 exponent and the first bits of the mantissa.
    """

    def _num_bins_of(self) -> int:
        return 2 * (SCORE_OCTAVES << self.bits) + 1

    def _bin_of(self, conf: Tensor) -> Tensor:
        most = SCORE_OCTAVES << self.bits
        code = conf.float().abs().view(torch.int32) >> (23 - self.bits)
        code = (code - (((127 - OCTAVES) << self.bits) - 1)).clamp_(0, most)
        return torch.where(conf < 0, most - code, most + code).long()


def add_to(table: Tensor, index: Tensor, conf: Tensor, correct: Tensor) -> Tensor:
    """Count predictions in the columns of a ``(3, C)`` table, in place, and return it."""
    conf = conf.double()
    table[0].scatter_add_(0, index, torch.ones_like(conf))
    table[1].scatter_add_(0, index, correct.double())
    table[2].scatter_add_(0, index, conf)
    return table


def table_of(index: Tensor, conf: Tensor, correct: Tensor, size: int) -> Tensor:
    return add_to(torch.zeros(3, size, dtype=torch.float64), index, conf, correct)


def num_narrow_bins(bits: int) -> int:
    """Return the number of bins: those of all octaves, one for exactly 1, one for exactly 0."""
    return (OCTAVES << bits) + 2


def narrow_bin_of(conf: Tensor, bits: int) -> Tensor:
    """Return the bin of each confidence; bins ascend in it."""
    size = num_narrow_bins(bits)
    code = (1 - conf).float().view(torch.int32) >> (23 - bits)
    # Of bins that ascend in 1 - confidence, the first is confidence 1.
    lowest = ((127 - OCTAVES) << bits) - 1
    return code.sub_(lowest).clamp_(0, size - 1).neg_().add_(size - 1).long()
