"""Bilinear upsampling of a map of logits, one tile of the result at a time."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mmcalib.losses.base.call_checks import computed_dtype

# Logits per tile: few enough for a CPU's cache, enough to keep a GPU busy.
TILE = {'cpu': 1 << 19}
GPU_TILE = 1 << 23
# A narrow tile needs few columns of the source, over which a product of matrices sums.
COLUMNS = 64


@dataclass(frozen=True)
class Tile:
    """A rectangle of pixels, the same of several images, in a map ``(N, H, W)``."""

    images: slice
    rows: slice
    columns: slice

    @property
    def pixels(self) -> tuple[slice, slice, slice]:
        return self.images, self.rows, self.columns

    def grown(self, reach: int) -> tuple[Tile, tuple[slice, slice, slice]]:
        """Return a tile with `reach` more pixels on each side, and where this one lies in it.

        What lies beyond the upper and the left border is left out; a slice leaves out the rest.
        """
        top, left = min(reach, self.rows.start), min(reach, self.columns.start)
        rows = slice(self.rows.start - top, self.rows.stop + reach)
        columns = slice(self.columns.start - left, self.columns.stop + reach)
        height, width = (side.stop - side.start for side in (self.rows, self.columns))
        inner = slice(None), slice(top, top + height), slice(left, left + width)
        return Tile(self.images, rows, columns), inner


class UpsampledTiles:
    """The tiles of ``F.interpolate(logits, size, mode='bilinear')``.

    Bilinear interpolation is a product with a matrix on each side, and a tile needs the rows of
    these matrices that belong to it: together the tiles are the whole map, to rounding. On a GPU
    that is TF32's, where a user allows it for products of matrices.

    Args:
        logits: ``(N, K, h, w)``.
        size: ``(H, W)`` of the result, larger or smaller.
        align_corners: That of ``F.interpolate``.
        all_images: Whether each tile is of all images.
    """

    def __init__(
        self,
        logits: Tensor,
        size: tuple[int, int],
        *,
        align_corners: bool,
        all_images: bool = False,
    ) -> None:
        like = computed_dtype(logits), logits.device
        height, width = logits.shape[2:]
        self.shape = (*logits.shape[:2], *size)
        self._down = _Interpolation(height, size[0], align_corners, *like)
        self._across = _Interpolation(width, size[1], align_corners, *like)
        self._same_size = (height, width) == tuple(size)
        self._limit = TILE.get(logits.device.type, GPU_TILE)
        self._all_images = all_images

    def __iter__(self) -> Iterator[Tile]:
        samples, classes, height, width = self.shape
        pixels = max(self._limit // classes, 1)
        images = samples if self._all_images else max(pixels // (height * width), 1)
        pixels = max(pixels // images, 1)
        columns = width if pixels >= height * width else _even(width, min(COLUMNS, pixels))
        rows = _even(height, max(pixels // columns, 1))
        for image in range(0, samples, images):
            for row in range(0, height, rows):
                for column in range(0, width, columns):
                    yield Tile(
                        slice(image, image + images),
                        slice(row, min(row + rows, height)),
                        slice(column, min(column + columns, width)),
                    )

    def upsample(self, logits: Tensor, tile: Tile) -> Tensor:
        """Return the upsampled logits ``(N, K, H, W)`` of a tile."""
        if self._same_size:
            return logits[self._source(tile)].contiguous()
        down, across = self._down.matrix(tile.rows), self._across.matrix(tile.columns)
        return torch.matmul(torch.matmul(down, logits[self._source(tile)]), across.T)

    def add_gradient(self, total: Tensor, gradient: Tensor, tile: Tile) -> None:
        """Add the gradient by the logits that follows from that by a tile's upsampled ones."""
        if not self._same_size:
            down, across = self._down.matrix(tile.rows), self._across.matrix(tile.columns)
            gradient = torch.matmul(down.T, torch.matmul(gradient, across))
        total[self._source(tile)] += gradient

    def _source(self, tile: Tile) -> tuple[slice, ...]:
        down, across = self._down.source(tile.rows), self._across.source(tile.columns)
        return tile.images, slice(None), down, across


class _Interpolation:
    """Linear interpolation of a line of points as a matrix."""

    def __init__(self, points, size, align_corners, dtype, device) -> None:
        self._matrix, self._first, self._last = _matrix(points, size, align_corners, dtype, device)

    def source(self, wanted: slice) -> slice:
        """Return the range of points that the wanted ones lie between."""
        return slice(self._first[wanted.start], self._last[wanted.stop - 1] + 1)

    def matrix(self, wanted: slice) -> Tensor:
        return self._matrix[wanted, self.source(wanted)]


@functools.lru_cache(maxsize=64)
def _matrix(points, size, align_corners, dtype, device) -> tuple[Tensor, list[int], list[int]]:
    """Return the ``(size, points)`` matrix, and the first and last point of each of its rows."""
    with torch.inference_mode(False), torch.no_grad():
        unit = torch.eye(points, dtype=dtype).unsqueeze(0)
        lines = F.interpolate(unit, size=size, mode='linear', align_corners=align_corners)
        matrix = lines[0].T.contiguous()
        used = matrix != 0
        first = used.int().argmax(dim=1).tolist()
        last = (points - 1 - used.flip(1).int().argmax(dim=1)).tolist()
        return matrix.to(device), first, last


def _even(length: int, most: int) -> int:
    """Return a part of a length that divides it, if one is between a half of `most` and it.

    Parts of one size let a compiler make one kernel of them.
    """
    most = min(most, length)
    return next((part for part in range(most, most // 2, -1) if length % part == 0), most)
