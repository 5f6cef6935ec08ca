"""Distance of the pixels of a segmentation from another label.

The distance counts diagonal steps as one, so a pixel beside another label has 1. A change to or
from the label that is ignored is a boundary too, since data sets such as VOC draw their outlines
with it; the image's edge is not.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Upper ends of the ranges of distance, in pixels. The last range lies beyond them; it also has the
# images of one label.
DISTANCES = (1, 2, 4, 8, 16, 32, 64)
RANGE_NAMES = ('1', '2', '3–4', '5–8', '9–16', '17–32', '33–64', 'over 64')


def boundary_distance(label: Tensor) -> Tensor:
    """Return the distance of each pixel, ``(H, W)`` int32 on the CPU; -1 in a map of one label."""
    from scipy import ndimage  # The import takes a moment, and few need it.

    labels = label.cpu().int().numpy()
    # A pixel touches another label if its neighbours have different labels.
    touches_other = ndimage.maximum_filter(labels, 3) != ndimage.minimum_filter(labels, 3)
    distance_to_touching = ndimage.distance_transform_cdt(~touches_other, 'chessboard')
    if not touches_other.any():
        return torch.from_numpy(distance_to_touching)  # scipy returns -1 for all.
    return torch.from_numpy(distance_to_touching + 1)


def boundary(label: Tensor, width: int) -> Tensor:
    """Return the mask of the pixels within `width` pixels of another label, ``(H, W)``."""
    distance = boundary_distance(label)
    return ((distance > 0) & (distance <= width)).to(label.device)


def distance_ranges(label: Tensor) -> Tensor:
    """Return the range of each pixel's distance from another label, ``(H, W)`` int64.

    The i-th range ends with ``DISTANCES[i]``.
    """
    distance = boundary_distance(label)
    upper_ends = torch.tensor(DISTANCES, dtype=distance.dtype, device='cpu')
    ranges = torch.bucketize(distance, upper_ends)
    return torch.where(distance < 0, len(DISTANCES), ranges).to(label.device)
