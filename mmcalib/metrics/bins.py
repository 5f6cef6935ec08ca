"""The sufficient statistics of calibration errors: tables that add up over images and ranks.

Every table here has three rows, float64: how many predictions fell into each bin, how many of those
were correct, and the sum of their confidences.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Up to this many confidences AECE is exact; above, they are counted in fine cells.
EXACT_LIMIT = 1_000_000

# A cell holds the values of 1 - confidence that share their float32 exponent and the first
# CELL_BITS bits of their mantissa. That spaces cells in log(1 - confidence), so a saturated
# network, whose confidences crowd just below 1, still spreads over thousands of them.
CELL_BITS = 12
_SHIFT = 23 - CELL_BITS
_SMALLEST = (127 - 24) << CELL_BITS  # of 2^-24, the last step before 1 in float32
NUM_CELLS = (24 << CELL_BITS) + 2  # 24 octaves up to 1, a cell for exactly 1, one for exactly 0


def equal_width_bins(conf: Tensor, correct: Tensor, num_bins: int) -> Tensor:
    r"""Count predictions in the bins :math:`((b-1)/B,\; b/B]` of confidence.

    Args:
        conf: ``(M,)`` confidences in [0, 1]; 0 counts in the first bin.
        correct: ``(M,)`` booleans.
        num_bins: B.

    Returns:
        ``(3, B)`` float64 table: count, correct, sum of confidences.
    """
    edges = torch.arange(1, num_bins, dtype=torch.float64, device=conf.device) / num_bins
    conf = conf.double()
    return _table(torch.bucketize(conf, edges), conf, correct, num_bins)


def equal_mass_bins(table: Tensor, num_bins: int) -> Tensor:
    r"""Merge cells, in ascending order of confidence, into B bins of equal count.

    A cell that an edge cuts is shared in proportion. So tied confidences count alike whatever their
    order, and no sample is lost; where all are tied, the error is the one of a single bin.

    Args:
        table: ``(3, C)`` table of cells, ascending in confidence.
        num_bins: B.

    Returns:
        ``(3, B)`` float64 table: count, correct, sum of confidences.
    """
    total = torch.nn.functional.pad(table.cumsum(dim=1), (1, 0))
    mass = total[0]
    edges = torch.linspace(0, 1, num_bins + 1, dtype=torch.float64) * mass[-1]
    upper = torch.searchsorted(mass, edges).clamp(1, mass.numel() - 1)
    share = (edges - mass[upper - 1]) / (mass[upper] - mass[upper - 1]).clamp(min=1)
    return torch.lerp(total[:, upper - 1], total[:, upper], share).diff(dim=1)


class ConfidenceCells:
    """Confidences and their correctness, exact while few and in fine cells when many.

    Constant memory: up to ``EXACT_LIMIT`` values are kept as they are, after which only
    ``NUM_CELLS`` counts are. The switch depends on the number of values alone, so any split of the
    same values, merged in any order, ends in the same cells.
    """

    def __init__(self) -> None:
        self.count = 0
        self._conf: list[Tensor] = []
        self._correct: list[Tensor] = []
        self._table: Tensor | None = None
        self._extremes: Tensor | None = None  # smallest conf and smallest -conf of each fine cell

    def add(self, conf: Tensor, correct: Tensor) -> ConfidenceCells:
        """Add ``(M,)`` confidences and ``(M,)`` booleans, both on the CPU."""
        self.count += conf.numel()
        if self.exact:
            self._conf.append(conf)
            self._correct.append(correct)
            if self.count > EXACT_LIMIT:
                self._coarsen()
        else:
            self._add_fine(conf, correct)
        return self

    def merge(self, other: ConfidenceCells) -> ConfidenceCells:
        """Add everything that `other` holds, and return self."""
        if other.exact:
            for conf, correct in zip(other._conf, other._correct, strict=True):
                self.add(conf, correct)
            return self
        if self.exact:
            self._coarsen()
        self.count += other.count
        self._table += other._table
        self._extremes = torch.minimum(self._extremes, other._extremes)
        return self

    def compact(self) -> None:
        """Join the kept values into one tensor, for a small pickle."""
        if self._conf:
            self._conf, self._correct = [torch.cat(self._conf)], [torch.cat(self._correct)]

    @property
    def exact(self) -> bool:
        """Whether the cells are the distinct confidences themselves."""
        return self._table is None

    def table(self) -> Tensor:
        """Return the ``(3, C)`` table of the cells, ascending in confidence."""
        if not self.exact:
            return self._table
        if not self._conf:
            return torch.zeros(3, 1, dtype=torch.float64)
        conf = torch.cat(self._conf).double()
        values, index = conf.unique(return_inverse=True)
        return _table(index, conf, torch.cat(self._correct), len(values))

    def spread(self) -> Tensor:
        """Return the largest less the smallest confidence in each cell, ``(C,)``."""
        if self.exact:
            return torch.zeros(self.table().shape[1], dtype=torch.float64)
        lowest, negated_highest = self._extremes
        return torch.where(self._table[0] > 0, -negated_highest - lowest, 0)

    def _coarsen(self) -> None:
        """Go from kept values to fine cells."""
        self._table = torch.zeros(3, NUM_CELLS, dtype=torch.float64)
        self._extremes = torch.full((2, NUM_CELLS), float('inf'), dtype=torch.float64)
        for conf, correct in zip(self._conf, self._correct, strict=True):
            self._add_fine(conf, correct)
        self._conf, self._correct = [], []

    def _add_fine(self, conf: Tensor, correct: Tensor) -> None:
        conf = conf.double()
        bits = (1 - conf).float().view(torch.int32) >> _SHIFT
        # Of cells that ascend in 1 - confidence, the first is confidence 1.
        index = NUM_CELLS - 1 - (bits - (_SMALLEST - 1)).clamp(0, NUM_CELLS - 1).long()
        self._table += _table(index, conf, correct, NUM_CELLS)
        both = torch.stack([conf, -conf])
        self._extremes.scatter_reduce_(1, index.expand(2, -1), both, 'amin')


def _table(index: Tensor, conf: Tensor, correct: Tensor, size: int) -> Tensor:
    return torch.stack(
        [
            torch.bincount(index, minlength=size).double(),
            torch.bincount(index, weights=correct.double(), minlength=size),
            torch.bincount(index, weights=conf, minlength=size),
        ]
    )
