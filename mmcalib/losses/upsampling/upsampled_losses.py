"""Losses of upsampled logits that are never all in memory: one tile of them at a time."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmcalib.checks import at_least_single
from mmcalib.losses.base.batch_loss import BatchLoss
from mmcalib.losses.upsampling.tile_terms import single_losses, term_of
from mmcalib.losses.upsampling.tiles import UpsampledTiles


def upsampled_losses(
    logits: Tensor,
    labels: Tensor,
    losses: Sequence[nn.Module],
    *,
    ignore_index: int,
    align_corners: bool,
) -> tuple[Tensor, Tensor]:
    r"""Return losses of bilinearly upsampled logits, and the number of correct pixels.

    .. math:: L_i(U l), \qquad \nabla_l L_i = U^\top \nabla L_i

    Upsampling, U, is linear, so both are had tile by tile, in one pass over the upsampled logits
    (in two for a :class:`BatchLoss`), and only the gradient by `logits` is kept. The gradient of a
    gradient (``create_graph=True``) is plain autograd's, of all upsampled logits.

    Args:
        logits: ``(N, K, h, w)``. float16 and bfloat16 are upsampled and computed in float32.
        labels: ``(N, H, W)``.
        losses: Those of which :func:`why_only_whole` returns None.
        ignore_index: The label that takes no part.
        align_corners: That of ``F.interpolate``.

    Returns:
        The values, one per loss, and the number of valid pixels whose largest logit is the label's.
    """
    gradient = torch.is_grad_enabled() and logits.requires_grad
    return _UpsampledLosses.apply(logits, labels, losses, ignore_index, align_corners, gradient)


class _UpsampledLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels, losses, ignore_index, align_corners, gradient):
        with torch.autocast(logits.device.type, enabled=False):
            values, correct, grads = _by_tiles(
                logits.detach(), labels, losses, ignore_index, align_corners, gradient
            )
        ctx.mark_non_differentiable(correct)
        ctx.save_for_backward(logits, labels, *grads)
        ctx.losses, ctx.call = losses, (ignore_index, align_corners)
        return values, correct

    @staticmethod
    def backward(ctx, grad_values, _):
        logits, labels, *grads = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: what is kept would count as a constant
            values = _whole(logits, labels, ctx.losses, *ctx.call)
            (grad,) = torch.autograd.grad(values, logits, grad_values, create_graph=True)
        else:
            pairs = zip(grads, grad_values.unbind(), strict=True)
            grad = sum(grad * factor for grad, factor in pairs)
        return grad.to(logits.dtype), None, None, None, None, None


def _by_tiles(
    logits, labels, losses, ignore_index, align_corners, gradient
) -> tuple[Tensor, Tensor, list[Tensor]]:
    singles = [list(single_losses(loss)) for loss in losses]
    tiles = UpsampledTiles(
        logits,
        labels.shape[1:],
        align_corners=align_corners,
        all_images=any(isinstance(single, BatchLoss) for part in singles for single in part),
    )
    logits = at_least_single(logits)

    def term(loss):
        call = dict(tiles=tiles, logits_of=lambda tile: tiles.upsample(logits, tile))
        return term_of(loss, logits, labels, ignore_index, **call)

    terms = [[term(single) for single in part] for part in singles]
    values = [sum((term.known for term in part), logits.new_zeros(())) for part in terms]
    grads = [torch.zeros_like(logits) for _ in losses] if gradient else []
    correct = labels.new_zeros((), dtype=torch.int64)
    for tile in tiles:
        large = tiles.upsample(logits, tile)
        correct += _count_correct(large, labels[tile.pixels], ignore_index)
        for number, part in enumerate(terms):
            if gradient:
                pairs = [term.value_and_gradient(large, tile) for term in part]
                values[number] += sum(value for value, _ in pairs)
                tiles.add_gradient(
                    grads[number], functools.reduce(torch.add, [grad for _, grad in pairs]), tile
                )
            else:
                values[number] += sum(term.value(large, tile) for term in part)
    return torch.stack(values), correct, grads


def _count_correct(logits: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    right = logits.max(dim=1).indices == labels
    return (right & (labels != ignore_index)).sum()


def _whole(logits, labels, losses, ignore_index, align_corners) -> Tensor:
    """Return the values by plain autograd, all upsampled logits in memory."""
    upsampled = F.interpolate(
        at_least_single(logits), labels.shape[1:], mode='bilinear', align_corners=align_corners
    )
    return torch.stack([loss(upsampled, labels, ignore_index=ignore_index) for loss in losses])
