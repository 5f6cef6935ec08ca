"""A loss of upsampled logits that are never all in memory: one tile of them at a time."""

from __future__ import annotations

from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmcalib.losses.calibration_loss import CalibrationLoss
from mmcalib.losses.value_and_gradient import GPU_PIECE, PIECE, WithGradient, in_one, in_pieces
from mmcalib.tensors import at_least_single

# A narrow tile needs few columns of the source, over which a product of matrices sums.
COLUMNS = 64


def why_only_whole(loss: nn.Module) -> str | None:
    """Return the reason why a loss needs the logits of all pixels at once, None if tiles do."""
    kind, methods = type(loss), ('forward', 'read', 'of_rows')
    if any(getattr(kind, each, None) is not getattr(CalibrationLoss, each) for each in methods):
        return f'{kind.__name__} is no sum over single pixels of mmcalib'
    return f"{kind.__name__} has reduction='none'" if loss.reduction == 'none' else None


def upsampled_loss(
    loss: CalibrationLoss, logits: Tensor, labels: Tensor, *, ignore_index: int, align_corners: bool
) -> tuple[Tensor, Tensor]:
    r"""Return a loss of bilinearly upsampled logits, and the number of correct pixels.

    .. math:: L(U l), \qquad \nabla_l L = U^\top \nabla L

    Upsampling, U, is a product with a matrix on each side, so both are had tile by tile, and only
    the gradient by `logits` is kept.

    Args:
        loss: One of which :func:`why_only_whole` returns None.
        logits: ``(N, K, h, w)``. float16 and bfloat16 are upsampled and computed in float32.
        labels: ``(N, H, W)``.
        ignore_index: The label that takes no part.
        align_corners: That of ``F.interpolate``.

    Returns:
        The value, and the number of valid pixels whose largest logit is the label's.
    """
    # In the shape of the upsampled logits, without their memory.
    pred = logits.new_empty(()).expand(*logits.shape[:2], *labels.shape[1:])
    target, valid, options = loss.read(pred, labels, None, ignore_index)
    weight = loss.row_weights(valid, pred, loss.reduction)
    both = in_one if loss.compiled else in_pieces

    def by_tiles(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        small = at_least_single(logits)
        piece = PIECE.get(logits.device.type, GPU_PIECE) // (COLUMNS * logits.shape[1])
        down = _interpolation(small, 2, labels.shape[1], align_corners, max(piece, 1))
        across = _interpolation(small, 3, labels.shape[2], align_corners, COLUMNS)
        value, grad = weight.new_zeros(()), torch.zeros_like(small)
        correct = torch.zeros((), dtype=torch.int64, device=logits.device)
        for image, (lines, above, up), (columns, beside, left) in product(
            range(len(logits)), down, across
        ):
            source = (slice(image, image + 1), slice(None), above, beside)
            tile = (slice(image, image + 1), lines, columns)
            large = up @ small[source] @ left.T
            found, slope = both(loss.formula, target[tile], weight[tile], options, large)
            value += found
            grad[source] += up.T @ (slope @ left)
            correct += ((large.argmax(dim=1) == target[tile]) & valid[tile]).sum()
        return value, grad, correct

    with torch.autocast(logits.device.type, enabled=False):
        return WithGradient.apply(logits, by_tiles)


def _interpolation(
    logits: Tensor, axis: int, size: int, align_corners: bool, step: int
) -> list[tuple[slice, slice, Tensor]]:
    """Return parts of an upsampled axis, the points they lie between, and the matrices."""
    unit = torch.eye(logits.shape[axis], dtype=logits.dtype, device='cpu').unsqueeze(0)
    matrix = F.interpolate(unit, size=size, mode='linear', align_corners=align_corners)[0].T
    parts = []
    for start in range(0, size, step):
        wanted = slice(start, start + step)
        used = matrix[wanted].any(dim=0).nonzero().flatten().tolist()
        source = slice(used[0], used[-1] + 1)
        parts.append((wanted, source, matrix[wanted, source].to(logits.device)))
    return parts
