"""The 98 log bins of an image: logarithmic in 1 - confidence, so that 99 and 99.99 % lie apart.

Each halving of 1 - confidence has four bins, and confidences of exactly 0 and 1 have one each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.metrics.bins import bin_table

OCTAVES = 24
BITS_PER_OCTAVE = 2
NUM_LOG_BINS = (OCTAVES << BITS_PER_OCTAVE) + 2
# The parts of a float32, and of a float64.
MANTISSA_BITS = 23
EXPONENT_OF_ONE = 127
DOUBLE_MANTISSA_BITS = 52
DOUBLE_EXPONENT_OF_ONE = 1023


def log_bin_index(one_minus_conf: Tensor) -> Tensor:
    """Return the index of the log bin of each 1 - confidence; indices ascend in confidence."""
    if (
        one_minus_conf.dtype == torch.float64
    ):  # Rounded, some would be on the other side of an edge.
        bits = one_minus_conf.view(torch.int64) >> (DOUBLE_MANTISSA_BITS - BITS_PER_OCTAVE)
        exponent_of_one = DOUBLE_EXPONENT_OF_ONE
    else:
        bits = one_minus_conf.float().view(torch.int32) >> (MANTISSA_BITS - BITS_PER_OCTAVE)
        exponent_of_one = EXPONENT_OF_ONE
    steps = bits - (((exponent_of_one - OCTAVES) << BITS_PER_OCTAVE) - 1)
    return (NUM_LOG_BINS - 1 - steps.clamp(0, NUM_LOG_BINS - 1)).long()


def log_bin_counts(conf: Tensor, correct: Tensor, unlabelled_conf: Tensor) -> Tensor:
    """Return the counts of an image's log bins, ``(3, 98)`` int32.

    The rows are the labelled predictions, the correct ones among them, and the predictions without
    a label, by their confidences.
    """
    labelled = bin_table(log_bin_index(1 - conf), conf, correct, NUM_LOG_BINS)[:2]
    unlabelled = torch.bincount(log_bin_index(1 - unlabelled_conf), minlength=NUM_LOG_BINS)
    return torch.cat([labelled, unlabelled[None]]).int()


def count_in_log_bins(image_log_bins: Tensor) -> Tensor:
    """Return the number of each image's predictions in each log bin, ``(n, 98)``, labelled or not.

    Args:
        image_log_bins: ``(n, 3, 98)``.
    """
    return image_log_bins[:, 0] + image_log_bins[:, 2]


def log_bin_thresholds() -> Tensor:
    """Return the exclusive lower edge of each log bin, a confidence, ``(98,)`` float64.

    A confidence lies in bin c or a later one if and only if it is larger than edge c; the first
    edge is below 0, since confidences of 0 lie in the first bin.
    """
    # Bits of the float32 value of 1 - confidence at which the bin before begins.
    first = ((EXPONENT_OF_ONE - OCTAVES) << BITS_PER_OCTAVE) + NUM_LOG_BINS - 1
    steps = first - torch.arange(NUM_LOG_BINS, device='cpu')
    bits = (steps << (MANTISSA_BITS - BITS_PER_OCTAVE)).int()
    thresholds = 1 - bits.view(torch.float32).double()
    thresholds[0] = -1
    return thresholds


def shares_above(image_log_bins: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shares of each image's labelled predictions that thresholds keep.

    Args:
        image_log_bins: ``(n, 3, 98)`` counts, see
            :class:`~mmcalib.metrics.statistics.CalibrationStatistics`.

    Returns:
        The shares that are kept, and that are kept and wrong, at each threshold of
        :func:`log_bin_thresholds`: two ``(n, 98)`` float64 tables, without the images that have no
        labels.
    """
    counts = image_log_bins[:, :2].double()
    counts = counts[counts[:, 0].sum(dim=1) > 0]
    kept, correct = counts.flip(2).cumsum(dim=2).flip(2).unbind(dim=1)
    return kept / kept[:, :1], (kept - correct) / kept[:, :1]
