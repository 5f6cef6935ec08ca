"""Base of the losses that are a function of the whole batch, not a sum over its rows."""

from __future__ import annotations

import torch
from torch import Tensor, distributed as dist

from mmcalib.losses.calibration_loss import ANY_NUMBER, BOOLEANS, CalibrationLoss
from mmcalib.losses.value_and_gradient import zero_unweighted
from mmcalib.options import check_choice


class BatchLoss(CalibrationLoss):
    r"""Base of the losses that are computed from sums over all valid rows.

    Its ``formula(logits, target, *, weight, over_ranks, **options)`` gives the scalar; `over_ranks`
    takes its sums over the rows, and returns those over the rows of all ranks.

    The value is a property of the batch, so there is no loss per row (``'none'``), no sum of them,
    and nothing for ``avg_factor`` to divide. It is a term beside another loss: in mmseg's list of
    losses, or in :class:`CombinedLoss`.

    Args:
        share_statistics: Add the sums of all ranks, so that the value, and the mean gradient
            over ranks, are those of their joint batch. Otherwise each rank computes its own value.
        common: Options of :class:`CalibrationLoss`, but for ``class_weight`` and ``compile``.

    Raises:
        TypeError: If an option is of another type.
        ValueError: If ``reduction`` is not ``'mean'``, or for class weights and ``compile``.
    """

    reductions = ('mean',)
    # A schedule may change the weight of a term beside another loss.
    ranges = dict(loss_weight=ANY_NUMBER)

    def __init__(self, *, share_statistics: bool = False, **common) -> None:
        super().__init__(**common)
        self.share_statistics = check_choice('share_statistics', share_statistics, BOOLEANS)
        if self.class_weight is not None or self.compiled:
            raise ValueError(
                f'{type(self).__name__} has no class_weight and no compile: leave them out'
            )

    def row_weights(self, valid: Tensor, pred: Tensor, reduction: str, avg_factor=None) -> Tensor:
        """Return 1 for valid rows, else 0; ``avg_factor``, which heads pass, takes no part."""
        return valid.to(torch.promote_types(pred.dtype, torch.float32))

    def weighted_loss(self, pred, target, row_weight, options, reduction) -> Tensor:
        """Return the loss of the batch, in which rows have these weights."""
        logits = zero_unweighted(pred, row_weight)
        over_ranks = _same_sums
        if self.share_statistics and dist.is_initialized():
            over_ranks = _sum_over_ranks
        loss = self.formula(logits, target, weight=row_weight, over_ranks=over_ranks, **options)
        return self.loss_weight * loss


def _same_sums(sums: Tensor) -> Tensor:
    return sums


def _sum_over_ranks(sums: Tensor) -> Tensor:
    from torch.distributed.nn.functional import all_reduce

    return all_reduce(sums)


def divide(total: Tensor, count: Tensor) -> Tensor:
    """Return total / count, 0 with a gradient of 0 where nothing was counted."""
    is_empty = count == 0
    return torch.where(is_empty, total * 0, total / count.masked_fill(is_empty, 1))
