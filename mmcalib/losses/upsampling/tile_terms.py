"""Losses of label maps in a form that can be had one tile of the map at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from mmcalib.losses.base.batch_loss import BatchLoss
from mmcalib.losses.base.calibration_loss import CalibrationLoss
from mmcalib.losses.base.call_checks import (
    computed_dtype,
    counted,
    known_rows,
    row_weights,
    split_ignored,
)
from mmcalib.losses.base.compiled_kernel import total_of
from mmcalib.losses.base.cross_entropy import cross_entropy
from mmcalib.losses.base.value_and_gradient import value_and_gradient
from mmcalib.losses.combined_loss import CombinedLoss
from mmcalib.losses.upsampling.mmseg_cross_entropy import (
    cross_entropy_and_gradient,
    is_mmseg_cross_entropy,
    mmseg_pixel_weights,
)
from mmcalib.losses.upsampling.tiles import Tile, UpsampledTiles


def single_losses(loss: nn.Module) -> Iterator[nn.Module]:
    """Yield the losses that one consists of."""
    if type(loss) is CombinedLoss:
        for part in loss.losses:
            yield from single_losses(part)
    else:
        yield loss


def why_only_whole(loss: nn.Module) -> str | None:
    """Return the reason why a loss needs the logits of all pixels at once, None if tiles do."""
    for single in single_losses(loss):
        name = type(single).__name__
        if isinstance(single, CalibrationLoss):
            contract = BatchLoss if isinstance(single, BatchLoss) else CalibrationLoss
            if type(single).forward is not contract.forward:
                return f'{name} has a forward of its own'
            if _looks_around(single) and single.reach is None:
                return f'{name} does not declare how far it looks around a pixel (reach)'
        elif not is_mmseg_cross_entropy(single):
            return f"{name} is neither a loss of mmcalib nor mmseg's CrossEntropyLoss"
        elif single.use_sigmoid or single.use_mask:
            return f'{name} is binary'
        if single.reduction == 'none':
            return f"{name} has reduction='none'"
    return None


def _looks_around(loss: CalibrationLoss) -> bool:
    return type(loss).look_around is not CalibrationLoss.look_around


@dataclass
class RowTerm:
    """A weighted sum of a loss per row; the fields are arguments of :func:`weighted_sum`."""

    formula: Callable[..., Tensor]
    target: Tensor
    weight: Tensor
    options: Mapping = field(default_factory=dict)
    by_hand: Callable[..., tuple[Tensor, Tensor]] | None = None
    compile: bool = False
    look_around: Callable[[Tile], tuple[Tensor, Mapping]] | None = None
    known = 0.0  # part of the value that belongs to no tile

    def value(self, logits: Tensor, tile: Tile) -> Tensor:
        return total_of(self.formula, logits, *self._rows(tile))

    def value_and_gradient(self, logits: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
        how = dict(by_hand=self.by_hand, compile=self.compile)
        return value_and_gradient(self.formula, logits, *self._rows(tile), **how)

    def _rows(self, tile: Tile) -> tuple[Tensor, Tensor, Mapping]:
        if self.look_around is None:
            target, options = self.target[tile.pixels], self.options
        else:
            target, around = self.look_around(tile)
            options = {**self.options, **around}
        return target.contiguous(), self.weight[tile.pixels].contiguous(), options


class BatchTerm:
    """A loss of sums over all rows: these are taken first, then its gradient is one of rows.

    Args:
        loss: The loss.
        target: ``(N, H, W)`` labels in [0, K).
        weight: ``(N, H, W)``.
        options: Those of the loss.
        tiles: Each of all N images.
        logits_of: Returns the logits of a tile.
    """

    def __init__(
        self,
        loss: BatchLoss,
        target: Tensor,
        weight: Tensor,
        options: Mapping,
        *,
        tiles: UpsampledTiles,
        logits_of: Callable[[Tile], Tensor],
    ) -> None:
        self._loss, self._target, self._weight, self._options = loss, target, weight, options
        with torch.no_grad():
            sums = sum(self._statistics(logits_of(tile), tile) for tile in tiles)
        with torch.inference_mode(False), torch.enable_grad():
            sums = sums.clone().requires_grad_()
            value = loss.of_statistics(sums, **options)
            (self._slope,) = torch.autograd.grad(value, sums)
        self.known = value.detach()

    def value(self, logits: Tensor, tile: Tile) -> float:
        return 0.0

    def value_and_gradient(self, logits: Tensor, tile: Tile) -> tuple[float, Tensor]:
        rows = self._rows(logits, tile)
        return 0.0, self._loss.gradient(*rows, self._slope, **self._options)

    def _statistics(self, logits: Tensor, tile: Tile) -> Tensor:
        return self._loss.statistics(*self._rows(logits, tile), **self._options)

    def _rows(self, logits: Tensor, tile: Tile) -> tuple[Tensor, Tensor, Tensor]:
        weight = self._weight[tile.pixels]
        return counted(logits, weight), self._target[tile.pixels], weight


def term_of(
    loss: nn.Module,
    logits: Tensor,
    labels: Tensor,
    ignore_index: int,
    *,
    tiles: UpsampledTiles,
    logits_of: Callable[[Tile], Tensor],
) -> RowTerm | BatchTerm:
    """Return the term of a single loss that tiles will do for, see :func:`why_only_whole`.

    Args:
        loss: The loss.
        logits: ``(N, K, h, w)``, before they are upsampled.
        labels: ``(N, H, W)``, ignored ones as they come.
        ignore_index: The ignored label.
        tiles: Those of the upsampled logits.
        logits_of: Returns the logits of a tile.

    Raises:
        ValueError: As the loss itself does, as for a label out of range.
    """
    # In the shape of the upsampled logits, without their memory.
    pred = logits.new_empty(()).expand(tiles.shape)
    dtype = computed_dtype(pred)
    if not isinstance(loss, CalibrationLoss):
        target, valid = split_ignored(labels, pred.shape[1], ignore_index)
        weight = mmseg_pixel_weights(loss, target, known_rows(valid, target), dtype)
        return RowTerm(cross_entropy, target, weight, by_hand=cross_entropy_and_gradient)
    looks_around = _looks_around(loss)
    read = loss.read_rows if looks_around else loss.read_call
    target, valid, options = read(pred, labels, None, ignore_index)
    if isinstance(loss, BatchLoss):
        weight = row_weights(valid, pred, weight=None, mean=False).expand(target.shape)
        return BatchTerm(loss, target, weight, options, tiles=tiles, logits_of=logits_of)
    known = known_rows(valid, target)
    weight = row_weights(valid, pred, weight=None, mean=loss.reduction == 'mean')

    def look_around(tile: Tile) -> tuple[Tensor, Mapping]:
        grown, inner = tile.grown(loss.reach)
        around = target[grown.pixels], known[grown.pixels]
        shares, more = loss.look_around(*around, pred.shape[1], dtype)
        cut = (inner[0], slice(None), *inner[1:])
        options = {key: x[cut] if _is_map(x) else x for key, x in more.items()}
        return shares[cut if shares.is_floating_point() else inner], options

    return RowTerm(
        loss.formula,
        target,
        (loss.loss_weight * weight).expand(target.shape),
        options,
        by_hand=loss.by_hand,
        compile=loss.compile_kernel,
        look_around=look_around if looks_around else None,
    )


def _is_map(option) -> bool:
    return torch.is_tensor(option) and option.ndim == 4
