"""Bins: the number of predictions in each bin, of correct ones, and the sum of confidences.

They are ``(…, 3, B)`` float64 tables.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

# Relative error up to which a confidence is the edge of a bin, such as 9 of 15 votes. In float32 a
# share is off by 6e-8, and the softmax of its logarithms by up to 3.2e-7, to either side.
EDGE_ROUNDING = 1e-6


def bin_index(conf: Tensor, num_bins: int) -> Tensor:
    """Return the index of the bin ((b - 1) / B, b / B] of each confidence; 0 is in the first.

    A confidence that is an edge but for `EDGE_ROUNDING` is in the bin that the edge ends.
    """
    scale = num_bins * (1 - EDGE_ROUNDING)
    return (conf.double() * scale).ceil_().sub_(1).clamp_(0, num_bins - 1).long()


def bin_table(index: Tensor, conf: Tensor, correct: Tensor, *shape: int) -> Tensor:
    """Return the ``(3, *shape)`` table of predictions that lie in the bins of these indices."""
    size = math.prod(shape)
    by_correctness = torch.bincount(index * 2 + correct, minlength=2 * size).view(-1, 2)
    count = by_correctness.sum(dim=1)
    sum_of_conf = torch.bincount(index, conf.double(), size)
    # bincount returns integers for no predictions at all.
    rows = [count.double(), by_correctness[:, 1].double(), sum_of_conf.double()]
    return torch.stack(rows).view(3, *shape)


def sum_by_key(keys: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ascending distinct keys ``(U,)``, and the sum of the columns of each ``(R, U)``.

    Args:
        keys: ``(M,)``, on the CPU.
        rows: ``(R, M)``.
    """
    # NumPy sorts in a third of the time that torch takes.
    order = np.argsort(keys.numpy())
    sorted_keys = keys.numpy()[order]
    sums = rows.numpy()[:, order]
    return sum_runs(torch.from_numpy(sorted_keys), torch.from_numpy(sums))


def sum_runs(sorted_keys: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return :func:`sum_by_key` of keys that are sorted."""
    keys = sorted_keys.numpy()
    begins = np.ones(len(keys), dtype=bool)
    begins[1:] = keys[1:] != keys[:-1]
    if begins.all():
        return sorted_keys, rows
    sums = np.add.reduceat(rows.numpy(), np.flatnonzero(begins), axis=1)
    return torch.from_numpy(keys[begins]), torch.from_numpy(sums)


def merge_equal_confidences(table: Tensor) -> Tensor:
    """Return a ``(3, C)`` table in which bins are merged if float32 cannot tell their means."""
    return sum_by_key((table[2] / table[0]).float(), table)[1]


def equal_mass_bins(table: Tensor, num_bins: int) -> Tensor:
    r"""Merge fine bins, in ascending order of confidence, into B bins of equal count.

    A fine bin that an edge cuts is shared in proportion, so the order of tied confidences does not
    matter, and no prediction is lost; if all are tied, the error is that of a single bin.

    Args:
        table: ``(3, C)`` fine bins.
        num_bins: B.
    """
    total = torch.nn.functional.pad(table.cumsum(dim=1), (1, 0))
    mass = total[0]
    edges = torch.linspace(0, 1, num_bins + 1, dtype=torch.float64, device=mass.device) * mass[-1]
    upper = torch.searchsorted(mass, edges).clamp(1, max(len(mass) - 1, 1))
    share = (edges - mass[upper - 1]) / (mass[upper] - mass[upper - 1]).clamp(min=1)
    return torch.lerp(total[:, upper - 1], total[:, upper], share.clamp(0, 1)).diff(dim=1)
