"""Binning conventions of other code, which explain why its numbers differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


def exact_edges(num_bins: int) -> Tensor:
    """Return b/B, rounded once, for b = 0, …, B."""
    return torch.arange(num_bins + 1, dtype=torch.float64) / num_bins


def single_edges(num_bins: int) -> Tensor:
    """Return torch's linspace in float32."""
    return torch.linspace(0, 1, num_bins + 1)


def numpy_edges(num_bins: int) -> Tensor:
    """Return numpy's linspace, which is a step of 1/B, rounded, times b: 3/10 is not 0.3."""
    return torch.from_numpy(np.linspace(0, 1, num_bins + 1))


@dataclass(frozen=True)
class Convention:
    """The choices in which implementations of calibration errors differ.

    Attributes:
        name: What ``CalibrationMetric(convention=…)`` calls it.
        positions: How many predictions lie below each edge of bins of equal mass.
        edges: The B + 1 edges of equal width.
        rounds_to_single: Confidences are rounded to float32 before they are binned.
        upper_closed: Bins are (lo, hi] rather than [lo, hi).
        own_bin_for_one: A confidence of exactly 1 has a bin of its own.
        only_seen_classes: Class-wise ECE averages over classes up to the largest label seen.
        shares_ties: Those edges may fall among tied confidences, which are shared in proportion.
        positive_of_two: Of two classes, the probability of class 1 is binned, and how often that
            is the true one, whichever is predicted.
        missing: Metrics that the code does not have.
    """

    name: str
    positions: Callable[[Tensor, Tensor, int], Tensor]
    edges: Callable[[int], Tensor] = exact_edges
    rounds_to_single: bool = False
    upper_closed: bool = True
    own_bin_for_one: bool = False
    only_seen_classes: bool = False
    shares_ties: bool = False
    positive_of_two: bool = False
    missing: tuple[str, ...] = ()

    def num_columns(self, num_bins: int) -> int:
        """Return the number of bins of equal width."""
        return num_bins + self.own_bin_for_one

    def bin_of(self, conf: Tensor, num_bins: int) -> Tensor:
        """Return the bin of each confidence, of any shape."""
        if self.edges is exact_edges and self.upper_closed and conf.dtype == torch.float32:
            # In float64 the product is exact, so this is what a search among the edges would find.
            return (conf.double() * num_bins).ceil_().sub_(1).clamp_(min=0).long()
        edges = self.edges(num_bins)
        conf = conf.float() if self.rounds_to_single else conf
        inner = edges[1:] if self.own_bin_for_one else edges[1:-1]
        dtype = torch.promote_types(edges.dtype, conf.dtype)
        return torch.bucketize(
            conf.to(dtype).contiguous(), inner.to(dtype), right=not self.upper_closed
        )


def proportional_positions(table: Tensor, tied: Tensor, num_bins: int) -> Tensor:
    """Return the positions of bins that hold the same share of all predictions.

    Args:
        table: ``(3, C)`` table of narrow bins, ascending in confidence.
        tied: ``(C,)`` whether all confidences of a narrow bin are the same.
        num_bins: B.

    Returns:
        ``(B + 1,)`` float64 positions, ascending.
    """
    return torch.linspace(0, 1, num_bins + 1, dtype=torch.float64) * table[0].sum()


def published_positions(table: Tensor, tied: Tensor, num_bins: int) -> Tensor:
    """Return the number of predictions at or below each edge of the paper's published AECE.

    Its edges are ``interp(linspace(0, n, B + 1), arange(n), sorted confidences)`` and its bins are
    (lo, hi]. So an edge takes in all that is tied with it, and the smallest confidence is lost.
    Arguments and return value are those of :func:`proportional_positions`.
    """
    mass = table[0].cumsum(0)
    count = int(mass[-1])
    ranks = np.floor(np.linspace(0, count, num_bins + 1)).clip(max=max(count - 1, 0))
    ranks = torch.from_numpy(ranks)
    narrow_bin = torch.searchsorted(mass, ranks, right=True).clamp(max=mass.numel() - 1)
    return torch.where(tied[narrow_bin], mass[narrow_bin], (ranks + 1).clamp(max=count))


def netcal_positions(table: Tensor, tied: Tensor, num_bins: int) -> Tensor:
    """Return the number of predictions below each edge of netcal's bins of equal mass.

    Its edges are numpy's quantiles, but for the first and last, 0 and 1, and its bins are [lo, hi).
    Arguments and return value are those of :func:`proportional_positions`.
    """
    mass = table[0].cumsum(0)
    count = int(mass[-1])
    ranks = torch.from_numpy(np.linspace(0, 1, num_bins + 1)) * max(count - 1, 0)
    lower = ranks.floor()
    narrow_bin = torch.searchsorted(mass, lower, right=True).clamp(max=mass.numel() - 1)
    following = torch.searchsorted(mass, (lower + 1).clamp(max=max(count - 1, 0)), right=True)
    # Between two different values the edge is above the lower one; on a value it is not.
    above = (ranks > lower) & (following > narrow_bin)
    exact = torch.where(above, mass[narrow_bin], mass[narrow_bin] - table[0][narrow_bin])
    positions = torch.where(tied[narrow_bin], exact, lower + (ranks > lower))
    positions[0], positions[-1] = 0, count
    return positions


MMCALIB = Convention('mmcalib', proportional_positions, shares_ties=True)
CONVENTIONS = {
    convention.name: convention
    for convention in (
        MMCALIB,
        Convention(
            'published',
            published_positions,
            edges=single_edges,
            only_seen_classes=True,
        ),
        Convention(
            'torchmetrics',
            proportional_positions,  # of nothing: it has no bins of equal mass
            edges=single_edges,
            rounds_to_single=True,
            upper_closed=False,
            own_bin_for_one=True,
            missing=('AECE', 'ClasswiseECE', 'OE'),
        ),
        Convention(
            'netcal',
            netcal_positions,
            edges=numpy_edges,
            upper_closed=False,
            positive_of_two=True,
            missing=('ClasswiseECE', 'RMSCE', 'OE'),
        ),
    )
}
