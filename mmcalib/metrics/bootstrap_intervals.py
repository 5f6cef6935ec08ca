"""How sure a number is: bootstrap intervals over images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

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
    highest: Mapping[str, float],
) -> dict[str, tuple[float, float]]:
    r"""Return bootstrap intervals of estimates that weigh units, such as images.

    .. math:: [2\hat\theta - \theta^*_{hi},\; 2\hat\theta - \theta^*_{lo}]

    from the estimate and the quantiles of the draws: the basic bootstrap. A binned calibration
    error is biased upwards, and that of a draw twice as much, so that the quantiles themselves
    would seldom hold the true error of a calibrated network.

    Source: Davison and Hinkley, Bootstrap Methods and Their Application, 1997, Section 5.2.

    Args:
        estimate: Given ``(R, U)`` float64 weights of the units, the ``(R,)`` values of each metric.
        num_units: U, at least 1.
        coverage: Of the interval, such as 0.95.
        num_bootstrap: How many times the units are drawn again.
        seed: Of these draws.
        highest: The largest value that a metric can have, if not 100; the least is 0.
    """
    draws: dict[str, list[Tensor]] = {}
    for weights in drawn_weights(num_units, num_bootstrap=num_bootstrap, seed=seed):
        for name, values in estimate(weights).items():
            draws.setdefault(name, []).append(values)
    tails = tails_of(coverage)
    found = estimate(torch.ones(1, num_units, dtype=torch.float64))
    bounds = {}
    for name, values in draws.items():
        low, high = 2 * found[name] - torch.cat(values).nanquantile(tails).flip(0)
        limits = dict(min=0, max=highest.get(name, 100))
        bounds[name] = low.clamp(**limits).item(), high.clamp(**limits).item()
    return bounds


def drawn_weights(num_units: int, *, num_bootstrap: int, seed: int) -> Iterator[Tensor]:
    """Yield how often units are drawn: ``(R, U)`` float64, a few of the `num_bootstrap` at a time.

    Args:
        num_units: U, at least 1.
        num_bootstrap: How many times as many units are drawn, with replacement.
        seed: Of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, num_bootstrap, CHUNK):
        size = (min(CHUNK, num_bootstrap - start), num_units)
        drawn = torch.randint(num_units, size, generator=generator)
        weights = torch.zeros(size, dtype=torch.float64)
        yield weights.scatter_add_(1, drawn, torch.ones_like(weights))


def tails_of(coverage: float) -> Tensor:
    """Return the two probabilities between which `coverage` of a distribution lies, float64."""
    return torch.tensor([(1 - coverage) / 2, (1 + coverage) / 2], dtype=torch.float64)
