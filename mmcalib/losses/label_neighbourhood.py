"""What surrounds a pixel in a map of labels, with borders and ignored pixels defined."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def neighbourhood_shares(labels: Tensor, valid: Tensor, num_classes: int, kernel: Tensor) -> Tensor:
    """Return the share of each class around every pixel, ``(N, K, H, W)``.

    Pixels beyond the border of the image and ignored ones have no label, so they count neither for
    a class nor in the sum of the weights: the shares of a valid pixel add up to 1 everywhere.

    Args:
        labels: ``(N, H, W)`` int64, in [0, K); any label where ignored.
        valid: ``(N, H, W)``, False where ignored.
        num_classes: K.
        kernel: ``(S, S)`` weights of odd S, that of the pixel itself in the middle.

    Raises:
        ValueError: If the labels are no maps.
    """
    if labels.ndim != 3:
        raise ValueError(
            f'a loss of neighbouring pixels needs label maps (N, H, W), got {tuple(labels.shape)}'
        )
    known = valid.unsqueeze(1).to(kernel.dtype)
    one_hot = F.one_hot(labels, num_classes).movedim(-1, 1).to(kernel.dtype) * known
    padding = len(kernel) // 2
    weights = kernel.expand(num_classes, 1, -1, -1)
    shares = F.conv2d(one_hot, weights, padding=padding, groups=num_classes)
    total = F.conv2d(known, weights[:1], padding=padding)
    # Around no known pixel at all, that is only around ignored ones, any share will do.
    return shares / total.masked_fill(total == 0, 1)


def gaussian_kernel(size: int, sigma: float, **like) -> Tensor:
    """Return ``(S, S)`` weights of a normal distribution around the middle."""
    offsets = torch.arange(size, **like) - (size - 1) / 2
    line = torch.exp(-(offsets**2) / (2 * sigma**2))
    return line.unsqueeze(0) * line.unsqueeze(1)
