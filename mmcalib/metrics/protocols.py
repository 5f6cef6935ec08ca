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
        text: What it is, for the log.
        region: Given the ``(H, W)`` labels and the width of a boundary, a mask of the pixels that
            count; None for all.
        group: How many consecutive images errors are computed over before they are averaged; None
            for all of them.
        by_pixels: Groups weigh as many pixels as they have, rather than all the same.
    """

    text: str
    region: Callable[[Tensor, int], Tensor] | None = None
    group: int | None = None
    by_pixels: bool = False


def foreground(label: Tensor, width: int) -> Tensor:
    """Return where an ``(H, W)`` label map is not background, label 0."""
    return label != BACKGROUND


PROTOCOLS = {
    'pooled': Protocol('all valid predictions together'),
    'foreground': Protocol('all valid pixels but the background, label 0', foreground),
    'image': Protocol('mean over the images that have valid pixels', group=1),
    'paper': Protocol(
        'the paper: pixels of the foreground in batches of 8 images, averaged by their pixels',
        foreground,
        group=8,
        by_pixels=True,
    ),
    'boundary': Protocol('valid pixels at most {width} pixels from another label', boundary),
}
