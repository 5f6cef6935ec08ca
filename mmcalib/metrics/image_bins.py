"""The confidences of each image in a few bins: shares kept by a threshold, and their errors.

Images are what is drawn at random, and the pixels of one are not; so what is to hold for new images
is estimated from tables that keep them apart.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.metrics.counts import NARROW_BITS, NUM_NARROW, OCTAVES


def predicted_in_narrow_bins(image_narrow_bins: Tensor) -> Tensor:
    """Return the number of predictions of each image in each bin, ``(n, C)``, labelled or not."""
    return image_narrow_bins[:, 0] + image_narrow_bins[:, 2]


def narrow_bin_thresholds() -> Tensor:
    """Return above which confidence the bins from each on lie, ``(C,)`` float64.

    A confidence is in bin c or one after it if and only if it is larger than the c-th; so that of
    the first, in which confidences of 0 are, is below 0.
    """
    # The bits of the float32 value of 1 - confidence at which the bin before begins.
    codes = ((127 - OCTAVES) << NARROW_BITS) + NUM_NARROW - 1 - torch.arange(NUM_NARROW)
    thresholds = 1 - (codes << (23 - NARROW_BITS)).int().view(torch.float32).double()
    thresholds[0] = -1
    return thresholds


def shares_above(image_narrow_bins: Tensor) -> tuple[Tensor, Tensor]:
    """Return which share of each image's labelled predictions thresholds keep, and keep wrongly.

    Args:
        image_narrow_bins: ``(n, 3, C)`` counts, see
            :class:`~mmcalib.metrics.statistics.CalibrationStatistics`.

    Returns:
        Two ``(n, C)`` float64 tables, for :func:`narrow_bin_thresholds`, without the images that
        have no labels.
    """
    counts = image_narrow_bins[:, :2].double()
    counts = counts[counts[:, 0].sum(dim=1) > 0]
    kept, right = counts.flip(2).cumsum(dim=2).flip(2).unbind(dim=1)
    return kept / kept[:, :1], (kept - right) / kept[:, :1]
