"""Calibration errors, in percent, out of the tables of bins.py."""

import torch
from torch import Tensor

from mmcalib.metrics.bins import cell_ranges


def binned_calibration_error(table: Tensor) -> float:
    r"""Return the expected calibration error of a binned table, in percent.

    .. math:: \sum_b \frac{n_b}{n} \left| \mathrm{acc}_b - \mathrm{conf}_b \right|

    Source: Eq. 8 of the paper. With equal-width bins this is ECE, with equal-mass bins AECE.

    Args:
        table: ``(3, B)``: count, correct, sum of confidences.

    Returns:
        Percent, NaN if the table is empty.
    """
    count, correct, conf = table.double()
    if count.sum() == 0:
        return float('nan')
    return 100 * ((correct - conf).abs().sum() / count.sum()).item()


def equal_mass_error_bound(cells: Tensor, num_bins: int) -> float:
    r"""Bound how far the AECE of fine cells can lie from that of the confidences, in percent.

    The two differ only where an edge cuts a cell: of a cell of n values, a of them correct, its
    lower share f holds between max(0, fn - (n - a)) and min(fn, a) correct ones, where
    :func:`~mmcalib.metrics.bins.equal_mass_bins` puts fa; and its confidence is off by at most
    f(1 - f)n times the width of the cell. Either moves between two bins.

    Args:
        cells: ``(3, NUM_CELLS)`` table of fine cells.
        num_bins: B.

    Returns:
        Percentage points, NaN if the table is empty.
    """
    count, correct, _ = cells
    mass = count.cumsum(0)
    if mass[-1] == 0:
        return float('nan')
    edges = torch.arange(1, num_bins, dtype=torch.float64) / num_bins * mass[-1]
    cut = torch.searchsorted(mass, edges)
    lowest, highest = cell_ranges()
    n, a, width = count[cut], correct[cut], (highest - lowest)[cut]
    lower = edges - (mass[cut] - n)  # how many of the cut cell lie below the edge: f * n
    share = lower / n
    correct_off = torch.maximum(
        share * a - (lower - (n - a)).clamp(min=0), torch.minimum(lower, a) - share * a
    )
    # Values that are all the same are shared in proportion by definition.
    correct_off = torch.where(width > 0, correct_off, 0)
    conf_off = lower * (1 - share) * width
    return 100 * (2 * (correct_off + conf_off).sum() / mass[-1]).item()
