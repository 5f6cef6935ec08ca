"""The sufficient statistics of calibration errors: tables that add up over images and ranks.

Every table here has three rows, float64: how many predictions fell into each bin, how many of those
were correct, and the sum of their confidences.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.metrics.bins.conventions import MMCALIB, Convention, proportional_positions
from mmcalib.samples.predictions import places_of

# Predictions for which it pays to look at those of the last bin first.
MANY = 1 << 12


def equal_width_bins(
    conf: Tensor, correct: Tensor, num_bins: int, *, convention: Convention = MMCALIB
) -> Tensor:
    r"""Count predictions in the bins :math:`((b-1)/B,\; b/B]` of confidence.

    Args:
        conf: ``(M,)`` confidences in [0, 1]; 0 counts in the first bin.
        correct: ``(M,)`` booleans.
        num_bins: B.
        convention: Another one's edges, which may have a bin more.

    Returns:
        ``(3, B)`` float64 table: count, correct, sum of confidences.
    """
    size = convention.num_columns(num_bins)
    if len(conf) < MANY or convention != MMCALIB:
        return table_of(convention.bin_of(conf, num_bins), conf, correct, size)
    # A trained network is mostly sure: what lies in the last bin need not be sorted into it, which
    # takes 0.6 ms in place of 2.0 of 375 x 500 pixels.
    rest = places_of(conf <= 1 - floor_of(num_bins))
    few, right = conf.index_select(0, rest), correct.index_select(0, rest)
    table = table_of(convention.bin_of(few, num_bins), few, right, size)
    table[0, -1] += len(conf) - len(few)
    table[1, -1] += correct.count_nonzero() - right.count_nonzero()
    table[2, -1] += conf.sum(dtype=torch.float64) - few.sum(dtype=torch.float64)
    return table


def bins_of_each(
    conf: Tensor, correct: Tensor, num_bins: int, *, convention: Convention = MMCALIB
) -> Tensor:
    """Return ``(M, 3, B)``, the table that :func:`equal_width_bins` makes of each prediction."""
    tables = torch.zeros(len(conf), 3, convention.num_columns(num_bins), dtype=torch.float64)
    own = torch.stack([torch.ones_like(conf), correct.to(conf), conf], dim=1).double()
    index = convention.bin_of(conf, num_bins)[:, None, None].expand(-1, 3, 1)
    return tables.scatter_(2, index, own[:, :, None])


def floor_of(num_bins: int) -> float:
    """Return what a probability that is not in the first bin is above, under any convention."""
    return (1 - 1e-5) / num_bins


def equal_mass_bins(table: Tensor, num_bins: int) -> Tensor:
    r"""Merge narrow bins, in ascending order of confidence, into B bins of equal count.

    One that an edge cuts is shared in proportion. So tied confidences count alike whatever their
    order, and no sample is lost; where all are tied, the error is the one of a single bin.

    Args:
        table: ``(3, C)`` table of narrow bins, ascending in confidence.
        num_bins: B.

    Returns:
        ``(3, B)`` float64 table: count, correct, sum of confidences.
    """
    return bins_between(table, proportional_positions(table, table[0] < 0, num_bins))


def bins_between(table: Tensor, positions: Tensor) -> Tensor:
    """Merge narrow bins into bins between positions among their predictions in ascending order.

    Args:
        table: ``(3, C)`` table of narrow bins, ascending in confidence.
        positions: ``(B + 1,)`` how many predictions lie below each edge, ascending.

    Returns:
        ``(3, B)`` float64 table.
    """
    total = torch.nn.functional.pad(table.cumsum(dim=1), (1, 0))
    mass = total[0]
    upper = torch.searchsorted(mass, positions).clamp(1, mass.numel() - 1)
    share = (positions - mass[upper - 1]) / (mass[upper] - mass[upper - 1]).clamp(min=1)
    return torch.lerp(total[:, upper - 1], total[:, upper], share.clamp(0, 1)).diff(dim=1)


def add_to(table: Tensor, index: Tensor, conf: Tensor, correct: Tensor) -> Tensor:
    """Count predictions in the columns of a ``(3, C)`` table, in place, and return it."""
    # Into the table itself: torch.bincount would make others as large.
    conf = conf.double()
    table[0].scatter_add_(0, index, torch.ones_like(conf))
    table[1].scatter_add_(0, index, correct.double())
    table[2].scatter_add_(0, index, conf)
    return table


def table_of(index: Tensor, conf: Tensor, correct: Tensor, size: int) -> Tensor:
    return add_to(torch.zeros(3, size, dtype=torch.float64), index, conf, correct)
