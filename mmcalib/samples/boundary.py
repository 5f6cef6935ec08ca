"""Distance of the pixels of a segmentation from another label.

The distance counts diagonal steps as one, so a pixel beside another label has 1. A change to or
from the label that is ignored is a boundary too, since data sets such as VOC draw their outlines
with it; the image's edge is not.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Upper ends of the ranges of distance, in pixels; the last range is beyond them, and holds images
# of one label.
DISTANCES = (1, 2, 4, 8, 16, 32, 64)
RANGE_NAMES = ('1', '2', '3–4', '5–8', '9–16', '17–32', '33–64', 'over 64')


def boundary(label: Tensor, width: int) -> Tensor:
    """Return which pixels lie within `width` pixels of one with another label.

    Args:
        label: ``(H, W)`` labels.
        width: At least 1.
    """
    return _widened(_beside_another(label), 0, width - 1)


def distance_ranges(label: Tensor) -> Tensor:
    """Return in which range of distance from another label each pixel lies, ``(H, W)`` int64.

    The i-th range ends with ``DISTANCES[i]``.

    Args:
        label: ``(H, W)`` labels.
    """
    near = _beside_another(label)
    ranges = torch.full(label.shape, len(DISTANCES), dtype=torch.uint8, device=label.device)
    reached = DISTANCES[0]
    for distance in DISTANCES:
        near = _widened(near, reached - 1, distance - 1)
        ranges -= near.byte()
        reached = distance
    return ranges.long()


def _beside_another(label: Tensor) -> Tensor:
    """Return which pixels have a neighbour, of eight, with another label."""
    found = torch.zeros(label.shape, dtype=torch.bool, device=label.device)
    middle, first, last = slice(None), slice(None, -1), slice(1, None)
    for one, other in (
        ((middle, first), (middle, last)),
        ((first, middle), (last, middle)),
        ((first, first), (last, last)),
        ((first, last), (last, first)),
    ):
        differs = label[one] != label[other]
        found[one] |= differs
        found[other] |= differs
    return found


def _widened(mask: Tensor, reach: int, wanted: int) -> Tensor:
    """Return which pixels lie within squares around points, wider ones than those given.

    Those of the pixels to either side, as far away as a square still touches its own, make it a
    wider one, so a few steps reach far.

    Args:
        mask: ``(H, W)`` pixels at most `reach` from a point.
        reach: Of the squares given.
        wanted: Of those returned, at least `reach`.
    """
    while reach < wanted:
        # No farther, since at the image's edge the pixel to that side may not be there.
        step = min(reach + 1, wanted - reach)
        for dim in (0, 1):
            wider, size = mask.clone(), mask.shape[dim]
            if step < size:
                before, after = (mask.narrow(dim, start, size - step) for start in (0, step))
                wider.narrow(dim, step, size - step).logical_or_(before)
                wider.narrow(dim, 0, size - step).logical_or_(after)
            mask = wider
        reach += step
    return mask
