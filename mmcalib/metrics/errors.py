"""Calibration errors, in percent, out of the tables of bins.py."""

import torch
from torch import Tensor


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


def equal_mass_error_bound(table: Tensor, spread: Tensor, num_bins: int) -> float:
    r"""Bound how far the AECE of cells can lie from that of the confidences in them, in percent.

    The two differ only where an edge cuts a cell: of a cell of n values, a of them correct, its
    lower share f holds between max(0, fn - (n - a)) and min(fn, a) correct ones, where
    :func:`~mmcalib.metrics.bins.equal_mass_bins` puts fa; and its confidence is off by at most
    f(1 - f)n times the spread of the cell. Either moves between two bins. A cell whose values are
    all the same adds nothing, since ties are shared in proportion by definition.

    Args:
        table: ``(3, C)`` table of cells, ascending in confidence.
        spread: ``(C,)`` largest less smallest confidence in each cell.
        num_bins: B.

    Returns:
        Percentage points, NaN if the table is empty.
    """
    count, correct, _ = table
    mass = count.cumsum(0)
    if mass[-1] == 0:
        return float('nan')
    edges = torch.arange(1, num_bins, dtype=torch.float64) / num_bins * mass[-1]
    cut = torch.searchsorted(mass, edges)
    n, a, spread = count[cut], correct[cut], spread[cut]
    lower = edges - (mass[cut] - n)  # how many of the cut cell lie below the edge: f * n
    share = lower / n
    correct_off = torch.maximum(
        share * a - (lower - (n - a)).clamp(min=0), torch.minimum(lower, a) - share * a
    )
    conf_off = lower * (1 - share) * spread
    off = torch.where(spread > 0, correct_off + conf_off, 0)
    return 100 * (2 * off.sum() / mass[-1]).item()
