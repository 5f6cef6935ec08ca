"""The confidences of each image in a few cells: what a threshold keeps of it, and gets wrong.

Images are what is drawn at random, and the pixels of one are not; so what is to hold for new images
is estimated from tables that keep them apart.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.metrics.confidence_cells import OCTAVES, cell_of, num_cells

# Cells are four to each halving of 1 - confidence: 98 of them, which is 0.8 kB of an image.
BITS = 2
NUM_CELLS = num_cells(BITS)


def count_in_cells(conf: Tensor, correct: Tensor) -> Tensor:
    """Return how many predictions of an image are in each cell, and how many of these are correct.

    Args:
        conf: ``(M,)`` float32 or float64.
        correct: ``(M,)`` booleans.

    Returns:
        ``(2, C)`` int32; cells ascend in confidence.
    """
    code = cell_of(conf, BITS).mul_(2).add_(correct)
    wrong, right = torch.bincount(code, minlength=2 * NUM_CELLS).view(-1, 2).unbind(dim=1)
    return torch.stack([wrong + right, right]).int()


def cell_thresholds() -> Tensor:
    """Return above which confidence the cells from each on lie, ``(C,)`` float64.

    A confidence is in cell c or one after it if and only if it is larger than the c-th; so that of
    the first, in which confidences of 0 are, is below 0.
    """
    # The bits of the float32 value of 1 - confidence at which the cell before begins.
    codes = ((127 - OCTAVES) << BITS) + NUM_CELLS - 1 - torch.arange(NUM_CELLS)
    ends = (codes << (23 - BITS)).int().view(torch.float32).double()
    thresholds = 1 - ends
    thresholds[0] = -1
    return thresholds


def shares_above(image_cells: Tensor) -> tuple[Tensor, Tensor]:
    """Return which share of each image's predictions every threshold keeps, and keeps wrongly.

    Args:
        image_cells: ``(n, 2, C)`` counts, as of :func:`count_in_cells`.

    Returns:
        Two ``(n, C)`` float64 tables, for :func:`cell_thresholds`; images without predictions are
        left out.
    """
    counts = image_cells.double()
    counts = counts[counts[:, 0].sum(dim=1) > 0]
    above = counts.flip(2).cumsum(dim=2).flip(2)
    kept, right = above.unbind(dim=1)
    total = kept[:, :1]
    return kept / total, (kept - right) / total
