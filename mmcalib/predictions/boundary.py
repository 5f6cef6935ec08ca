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


def boundary_distance(label: Tensor) -> Tensor:
    """Return the distance of each pixel, ``(H, W)`` int32 on the CPU; -1 in a map of one label."""
    from scipy import ndimage  # takes a moment to import, and few need it

    label = label.cpu().int().numpy()
    beside = ndimage.maximum_filter(label, 3) != ndimage.minimum_filter(label, 3)
    # Without any boundary there is nothing to be near, and it returns -1.
    return torch.from_numpy(ndimage.distance_transform_cdt(~beside, 'chessboard') + beside.any())


def boundary(label: Tensor, width: int) -> Tensor:
    """Return which pixels of ``(H, W)`` labels lie within `width` pixels of another label."""
    distance = boundary_distance(label)
    return ((distance > 0) & (distance <= width)).to(label.device)


def distance_ranges(label: Tensor) -> Tensor:
    """Return in which range of distance from another label each pixel lies, ``(H, W)`` int64.

    The i-th range ends with ``DISTANCES[i]``.
    """
    distance = boundary_distance(label)
    ranges = torch.bucketize(distance, torch.tensor(DISTANCES, dtype=distance.dtype, device='cpu'))
    return torch.where(distance < 0, len(DISTANCES), ranges).to(label.device)
