"""The confidences of each image in a few cells: what a threshold keeps of it, and gets wrong.

Images are what is drawn at random, and the pixels of one are not; so what is to hold for new images
is estimated from tables that keep them apart.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.metrics.bins.narrow_bins import OCTAVES
from mmcalib.metrics.bins.narrow_bins import narrow_bin_of as cell_of
from mmcalib.metrics.bins.narrow_bins import num_narrow_bins as num_cells

# Cells are four to each halving of 1 - confidence: 98 of them, which is 1.2 kB of an image.
BITS = 2
NUM_CELLS = num_cells(BITS)


def count_in_cells(conf: Tensor, correct: Tensor, unlabelled: Tensor | None = None) -> Tensor:
    """Return how many predictions of an image are in each cell: labelled, correct, unlabelled.

    Args:
        conf: ``(M,)`` float32 or float64, of the predictions that have a label.
        correct: ``(M,)`` booleans.
        unlabelled: ``(I,)`` confidences of the pixels without a label, such as ignored ones.

    Returns:
        ``(3, C)`` int32; cells ascend in confidence.
    """
    code = cell_of(conf, BITS).mul_(2).add_(correct)
    wrong, right = torch.bincount(code, minlength=2 * NUM_CELLS).view(-1, 2).unbind(dim=1)
    others = conf[:0] if unlabelled is None else unlabelled
    rest = torch.bincount(cell_of(others, BITS), minlength=NUM_CELLS)
    return torch.stack([wrong + right, right, rest]).int()


def cells_of_each(conf: Tensor, correct: Tensor) -> Tensor:
    """Return what :func:`count_in_cells` does of images that have one prediction each, ``(M,)``.

    Returns:
        ``(M, 3, C)`` int32.
    """
    counts = torch.zeros(len(conf), 3, NUM_CELLS, dtype=torch.int32)
    own = torch.stack([torch.ones_like(correct), correct, torch.zeros_like(correct)], dim=1)
    index = cell_of(conf, BITS)[:, None, None].expand(-1, 3, 1)
    return counts.scatter_(2, index, own[:, :, None].int())


def predicted_in_cells(image_cells: Tensor) -> Tensor:
    """Return how many predictions of each image are in each cell, ``(n, C)``, labelled or not."""
    return image_cells[:, 0] + image_cells[:, 2]


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
    """Return which share of each image's labelled predictions thresholds keep, and keep wrongly.

    Args:
        image_cells: ``(n, 3, C)`` counts, as of :func:`count_in_cells`.

    Returns:
        Two ``(n, C)`` float64 tables, for :func:`cell_thresholds`; images without labels are left
        out.
    """
    counts = image_cells[:, :2].double()
    counts = counts[counts[:, 0].sum(dim=1) > 0]
    above = counts.flip(2).cumsum(dim=2).flip(2)
    kept, right = above.unbind(dim=1)
    total = kept[:, :1]
    return kept / total, (kept - right) / total
