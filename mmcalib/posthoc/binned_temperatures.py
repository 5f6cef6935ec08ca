"""A temperature for each bin of predictions, such as those of one predicted class."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from mmcalib.posthoc.effective_number import effective_number
from mmcalib.posthoc.temperature_scaler import BOUNDS, TemperatureScaler, slope_and_curvature

# Gives logits (M, K), labels (M,) and bins (M,) in parts, anew at each call.
BinReader = Callable[[], Iterable[tuple[Tensor, Tensor, Tensor]]]

_TOLERANCE = 1e-9
_MAX_PASSES = 100


def temperatures_of_bins(
    read: BinReader, groups: Tensor | None, *, num_bins: int, penalty: float
) -> Tensor:
    r"""Return the temperature of each bin, drawn towards the temperature of all.

    With T the single temperature of the least NLL, that of bin b minimises

    .. math:: \frac{N_b}{n_b} \sum_{i \in b} \mathrm{NLL}_i(T_b) + \lambda (T / T_b - 1)^2

    where the n rows of a bin count as the effective number N of predictions that they amount to.
    It is convex in 1/T, and found for all bins at once by safeguarded Newton steps.

    Args:
        read: Bins are within [0, B).
        groups: ``(N,)`` for all rows in the order of reading, None if all are independent.
        num_bins: B.
        penalty: :math:`\lambda`. A bin without predictions has the temperature of all.

    Returns:
        ``(B,)`` float64, within [0.01, 100].
    """
    single = TemperatureScaler()
    single._fit(lambda: ((logits, labels) for logits, labels, _ in read()), None)
    temperature = single.temperature_
    counts, weights = _counts_and_weights(read, groups, num_bins, 1 / temperature)
    low = torch.full((num_bins,), 1 / BOUNDS[1], dtype=torch.float64)
    high = torch.full_like(low, 1 / BOUNDS[0])
    beta = torch.full_like(low, 1 / temperature)
    for _ in range(_MAX_PASSES):
        sums = torch.zeros(2, num_bins, dtype=torch.float64)
        for logits, labels, bins in read():
            each = torch.stack(slope_and_curvature(logits, labels, beta.to(bins.device)[bins]))
            sums.index_add_(1, bins.cpu(), each.cpu())
        slope, curvature = weights * sums
        slope += 2 * penalty * temperature * (temperature * beta - 1)
        curvature += 2 * penalty * temperature**2
        low, high = torch.where(slope < 0, beta, low), torch.where(slope < 0, high, beta)
        step = beta - slope / curvature
        new = torch.where((step >= low) & (step <= high), step, (low * high).sqrt())
        change, beta = (new / beta - 1).abs()[counts > 0].max(), new
        if change < _TOLERANCE:
            break
    return torch.where(counts > 0, 1 / beta, temperature)


def _counts_and_weights(
    read: BinReader, groups: Tensor | None, num_bins: int, beta: float
) -> tuple[Tensor, Tensor]:
    """Return how many rows each bin has, and how many effective predictions each of them is."""
    parts = [
        (slope_and_curvature(logits, labels, beta)[0].cpu(), bins.cpu())
        for logits, labels, bins in read()
    ]
    slopes, bins = (torch.cat(column) for column in zip(*parts, strict=True))
    counts = bins.bincount(minlength=num_bins)
    weights = torch.zeros(num_bins, dtype=torch.float64)
    for place in counts.nonzero().flatten().tolist():
        rows = bins == place
        of_rows = None if groups is None else groups.cpu()[rows]
        weights[place] = effective_number(slopes[rows], of_rows) / counts[place]
    return counts, weights
