"""The confidences of each image in a few bins: shares kept by a threshold, and their errors.

Images are what is drawn at random, and the pixels of one are not; so what is to hold for new images
is estimated from tables that keep them apart.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.metrics.bins.narrow_bins import OCTAVES, narrow_bin_of, num_narrow_bins

# Bins are four to each halving of 1 - confidence: 98 of them, which is 1.2 kB of an image.
BITS = 2
NUM_NARROW_BINS = num_narrow_bins(BITS)


def count_in_narrow_bins(conf: Tensor, correct: Tensor, unlabelled: Tensor | None = None) -> Tensor:
    """Return the numbers of an image's predictions in each bin: labelled, correct, unlabelled.

    Args:
        conf: ``(M,)`` float32 or float64, of the predictions that have a label.
        correct: ``(M,)`` booleans.
        unlabelled: ``(I,)`` confidences of the pixels without a label, such as ignored ones.

    Returns:
        ``(3, C)`` int32; bins ascend in confidence.
    """
    code = narrow_bin_of(conf, BITS).mul_(2).add_(correct)
    wrong, right = torch.bincount(code, minlength=2 * NUM_NARROW_BINS).view(-1, 2).unbind(dim=1)
    others = conf[:0] if unlabelled is None else unlabelled
    rest = torch.bincount(narrow_bin_of(others, BITS), minlength=NUM_NARROW_BINS)
    return torch.stack([wrong + right, right, rest]).int()


def narrow_bins_of_each(conf: Tensor, correct: Tensor) -> Tensor:
    """Return :func:`count_in_narrow_bins` for ``(M,)`` images that have one prediction each.

    Returns:
        ``(M, 3, C)`` int32.
    """
    counts = torch.zeros(len(conf), 3, NUM_NARROW_BINS, dtype=torch.int32)
    own = torch.stack([torch.ones_like(correct), correct, torch.zeros_like(correct)], dim=1)
    index = narrow_bin_of(conf, BITS)[:, None, None].expand(-1, 3, 1)
    return counts.scatter_(2, index, own[:, :, None].int())


def predicted_in_narrow_bins(image_narrow_bins: Tensor) -> Tensor:
    """Return the number of predictions of each image in each bin, ``(n, C)``, labelled or not."""
    return image_narrow_bins[:, 0] + image_narrow_bins[:, 2]


def narrow_bin_thresholds() -> Tensor:
    """Return above which confidence the bins from each on lie, ``(C,)`` float64.

    A confidence is in bin c or one after it if and only if it is larger than the c-th; so that of
    the first, in which confidences of 0 are, is below 0.
    """
    # The bits of the float32 value of 1 - confidence at which the bin before begins.
    codes = ((127 - OCTAVES) << BITS) + NUM_NARROW_BINS - 1 - torch.arange(NUM_NARROW_BINS)
    ends = (codes << (23 - BITS)).int().view(torch.float32).double()
    thresholds = 1 - ends
    thresholds[0] = -1
    return thresholds


def shares_above(image_narrow_bins: Tensor) -> tuple[Tensor, Tensor]:
    """Return which share of each image's labelled predictions thresholds keep, and keep wrongly.

    Args:
        image_narrow_bins: ``(n, 3, C)`` counts, as of :func:`count_in_narrow_bins`.

    Returns:
        Two ``(n, C)`` float64 tables, for :func:`narrow_bin_thresholds`, without the images that
        have no labels.
    """
    counts = image_narrow_bins[:, :2].double()
    counts = counts[counts[:, 0].sum(dim=1) > 0]
    above = counts.flip(2).cumsum(dim=2).flip(2)
    kept, right = above.unbind(dim=1)
    total = kept[:, :1]
    return kept / total, (kept - right) / total
