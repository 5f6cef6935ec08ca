"""How sure a number is: bootstrap intervals over images."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Draws at a time, so that few large matrices of weights exist together.
CHUNK = 50


def intervals(
    estimate: Callable[[Tensor], dict[str, Tensor]],
    num_units: int,
    *,
    coverage: float,
    num_bootstrap: int,
    seed: int,
) -> dict[str, tuple[float, float]]:
    """Return percentile bootstrap intervals of estimates that weigh units, such as images.

    Args:
        estimate: Given ``(R, U)`` float64 weights of the units, the ``(R,)`` values of each metric.
        num_units: U, at least 1.
        coverage: Of the interval, such as 0.95.
        num_bootstrap: How many times the units are drawn again.
        seed: Of these draws.
    """
    generator = torch.Generator().manual_seed(seed)
    draws: dict[str, list[Tensor]] = {}
    for start in range(0, num_bootstrap, CHUNK):
        size = (min(CHUNK, num_bootstrap - start), num_units)
        drawn = torch.randint(num_units, size, generator=generator)
        weights = torch.zeros(size, dtype=torch.float64)
        weights.scatter_add_(1, drawn, torch.ones_like(weights))
        for name, values in estimate(weights).items():
            draws.setdefault(name, []).append(values)
    tails = torch.tensor([(1 - coverage) / 2, (1 + coverage) / 2], dtype=torch.float64)
    return {
        name: tuple(torch.cat(values).nanquantile(tails).tolist()) for name, values in draws.items()
    }
