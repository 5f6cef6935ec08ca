"""Protocols of segmentation: the pixels that count, and what errors are averaged over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from mmcalib.samples.boundary import boundary

BACKGROUND = 0


@dataclass(frozen=True)
class Protocol:
    """One way of judging a segmentation.

    Attributes:
        region: Given the ``(H, W)`` labels and the width of a boundary, a mask of the pixels that
            count; None for all.
        group: How many consecutive images errors are computed over before they are averaged; None
            for all of them.
        by_pixels: Groups weigh as many pixels as they have, rather than all the same.
    """

    region: Callable[[Tensor, int], Tensor] | None = None
    group: int | None = None
    by_pixels: bool = False


def foreground(label: Tensor, _: int) -> Tensor:
    """Return where an ``(H, W)`` label map is not background, label 0."""
    return label != BACKGROUND


PROTOCOLS = {
    'pooled': Protocol(),
    'foreground': Protocol(foreground),
    'image': Protocol(group=1),
    # The paper's: averaged by the pixels of 8 images.
    'paper': Protocol(foreground, group=8, by_pixels=True),
    'boundary': Protocol(boundary),
}
