"""Tables of steps and of straight lines, in operations that ONNX has."""

from __future__ import annotations

import torch
from torch import Tensor


def count_below(values: Tensor, knots: Tensor, *, or_equal: bool = False) -> Tensor:
    """Return how many of the ascending knots ``(B,)`` lie below each value, by halving.

    It is ``torch.searchsorted``, which cannot be exported to ONNX.

    Args:
        values: Of any shape.
        knots: ``(B,)``, at least one.
        or_equal: Count those that equal the value, too.
    """
    number = len(knots)
    count = torch.zeros_like(values, dtype=torch.int64)
    step = 1 << (number.bit_length() - 1)
    while step:
        more = count + step
        knot = knots[(more - 1).clamp(max=number - 1)]
        passed = (knot <= values) if or_equal else (knot < values)
        count = torch.where(passed & (more <= number), more, count)
        step //= 2
    return count


def interpolate(values: Tensor, knots: Tensor, heights: Tensor) -> Tensor:
    """Return the line through ascending knots ``(B,)`` of these heights, level beyond the ends."""
    right = count_below(values, knots).clamp(max=len(knots) - 1)
    left = (right - 1).clamp(min=0)
    width = (knots[right] - knots[left]).clamp(min=torch.finfo(knots.dtype).tiny)
    share = ((values - knots[left]) / width).clamp(0, 1)
    return heights[left] + share * (heights[right] - heights[left])
