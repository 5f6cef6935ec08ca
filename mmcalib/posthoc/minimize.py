"""The minimum of a sum of terms of named tensors, by L-BFGS-B and autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import scipy.optimize
import torch
from torch import Tensor


def minimize_sum(
    terms: Sequence[Callable[..., Tensor | float]],
    start: Mapping[str, Tensor],
    bounds: Mapping[str, tuple[float, float]],
    *,
    units: Mapping[str, Tensor] | None = None,
    tolerance: float = 1e-13,
) -> dict[str, Tensor]:
    """Return the named tensors at which a sum of terms is least.

    Args:
        terms: Functions of the tensors, by keyword. One is computed after the other, so that one is
            in memory.
        start: The tensors to start from.
        bounds: The least and the largest value of the tensors that have bounds, by name.
        units: The change of each tensor's elements that matters, by name; 1 if left out. The search
            takes a third to two thirds of the passes where they make the curvature about equal.
        tolerance: The decrease of the sum, relative to it, below which the search ends. Terms in
            float32 have noise, below which no decrease is found.
    """
    sizes = [value.numel() for value in start.values()]
    flat_start = torch.cat([value.flatten() for value in start.values()]).double()
    device = flat_start.device
    flat_units = []
    for name, value in start.items():
        unit = (units or {}).get(name, torch.ones_like(value))
        flat_units.append(unit.flatten().double().cpu())
    flat_units = torch.cat(flat_units).numpy()

    def split_by_name(flat: Tensor) -> dict[str, Tensor]:
        tensors = {}
        for (name, value), part in zip(start.items(), flat.split(sizes), strict=True):
            tensors[name] = part.view(value.shape)
        return tensors

    def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
        leaf = torch.tensor(flat * flat_units, device=device, requires_grad=True)
        total = 0.0
        for term in terms:
            value = term(**split_by_name(leaf))
            if torch.is_tensor(value):
                value.backward()
                total += value.item()
        return total, leaf.grad.cpu().numpy() * flat_units

    scipy_bounds = None
    if bounds:
        flat_bounds = []
        for name, size in zip(start, sizes, strict=True):
            flat_bounds += [bounds.get(name, (-np.inf, np.inf))] * size
        low, high = np.array(flat_bounds).T / flat_units
        scipy_bounds = scipy.optimize.Bounds(low, high)
    result = scipy.optimize.minimize(
        value_and_gradient,
        flat_start.cpu().numpy() / flat_units,
        jac=True,
        method='L-BFGS-B',
        bounds=scipy_bounds,
        options={
            'maxiter': 1000,
            'maxfun': 2000,
            'ftol': tolerance,
            # In units of equal curvature a gradient g is g²/2 above the minimum.
            'gtol': 0.3 * tolerance**0.5,
        },
    )
    return split_by_name(torch.tensor(result.x * flat_units, device=device))
