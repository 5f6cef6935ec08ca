"""A loss of upsampled logits that are never all in memory: one tile of them at a time."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmcalib.losses.calibration_loss import CalibrationLoss
from mmcalib.losses.value_and_gradient import (
    GPU_PIECE,
    PIECE,
    WithGradient,
    differentiate_compiled,
    differentiate_in_pieces,
)
from mmcalib.tensors import at_least_single

# A narrow tile needs few columns of the source, over which a product of matrices sums.
COLUMNS = 64


def reason_for_whole_logits(loss: nn.Module) -> str | None:
    """Return the reason why a loss needs the logits of all pixels at once, None if tiles do."""
    kind = type(loss)
    for method in ('forward', 'prepare_call', 'weighted_loss'):
        if getattr(kind, method, None) is not getattr(CalibrationLoss, method):
            return f'{kind.__name__} is no sum over single pixels of mmcalib'
    if loss.reduction == 'none':
        return f"{kind.__name__} has reduction='none'"
    return None


def upsampled_loss(
    loss: CalibrationLoss, logits: Tensor, labels: Tensor, *, ignore_index: int, align_corners: bool
) -> tuple[Tensor, Tensor]:
    r"""Return a loss of bilinearly upsampled logits, and the number of correct pixels.

    .. math:: L(U l), \qquad \nabla_l L = U^\top \nabla L

    Upsampling, U, is a product with a matrix on each side, so both are computed tile by tile, and
    only the gradient by `logits` is kept.

    Args:
        loss: A loss for which :func:`reason_for_whole_logits` returns None.
        logits: ``(N, K, h, w)``. float16 and bfloat16 are upsampled and computed in float32.
        labels: ``(N, H, W)``.
        ignore_index: The label that takes no part.
        align_corners: That of ``F.interpolate``.

    Returns:
        The value, and the number of valid pixels whose largest logit is the label's.
    """
    # In the shape of the upsampled logits, without their memory.
    pred = logits.new_empty(()).expand(*logits.shape[:2], *labels.shape[1:])
    target, valid, options = loss.prepare_call(pred, labels, None, ignore_index)
    loss.check_first_call(logits, target)
    weight = loss.row_weights(valid, pred, loss.reduction)
    differentiate = differentiate_compiled if loss.compiled else differentiate_in_pieces

    def sum_over_tiles(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        small = at_least_single(logits)
        lines_per_tile = PIECE.get(logits.device.type, GPU_PIECE) // (COLUMNS * logits.shape[1])
        line_bands = _bands(small, 2, labels.shape[1], align_corners, max(lines_per_tile, 1))
        column_bands = _bands(small, 3, labels.shape[2], align_corners, COLUMNS)
        value = weight.new_zeros(())
        grad = torch.zeros_like(small)
        correct = torch.zeros((), dtype=torch.int64, device=logits.device)
        for index, lines, columns in product(range(len(logits)), line_bands, column_bands):
            image = slice(index, index + 1)
            source = (image, slice(None), lines.source, columns.source)
            tile = (image, lines.tile, columns.tile)
            tile_logits = lines.matrix @ small[source] @ columns.matrix.T
            tile_value, tile_grad = differentiate(
                loss.formula, target[tile], weight[tile], options, tile_logits
            )
            value += tile_value
            grad[source] += lines.matrix.T @ (tile_grad @ columns.matrix)
            correct += ((tile_logits.argmax(dim=1) == target[tile]) & valid[tile]).sum()
        return value, grad, correct

    with torch.autocast(logits.device.type, enabled=False):
        return WithGradient.apply(logits, sum_over_tiles)


class Band(NamedTuple):
    """Part of an upsampled axis.

    Attributes:
        tile: Its slice of the upsampled axis.
        source: The slice of the small axis that it is interpolated from.
        matrix: Weights of the interpolation, ``(tile, source)``.
    """

    tile: slice
    source: slice
    matrix: Tensor


def _bands(logits: Tensor, axis: int, size: int, align_corners: bool, step: int) -> list[Band]:
    """Cut an axis that is upsampled to `size` into bands of `step`."""
    unit = torch.eye(logits.shape[axis], dtype=logits.dtype, device='cpu').unsqueeze(0)
    matrix = F.interpolate(unit, size=size, mode='linear', align_corners=align_corners)[0].T
    bands = []
    for start in range(0, size, step):
        tile = slice(start, start + step)
        used = matrix[tile].any(dim=0).nonzero().flatten().tolist()
        source = slice(used[0], used[-1] + 1)
        bands.append(Band(tile, source, matrix[tile, source].to(logits.device)))
    return bands
