"""The contract of losses that are a function of the whole batch, not a sum over its rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import distributed as dist

from mmcalib.losses.base.calibration_loss import CalibrationLoss
from mmcalib.losses.base.call_checks import counted, row_weights


class BatchLoss(CalibrationLoss):
    r"""A loss computed from statistics of all valid rows.

    A subclass gives :meth:`statistics`, sums over the weighted rows, and :meth:`value`, the scalar
    of these sums:

    .. math:: L = \text{loss\_weight} \cdot f\Big(\sum_{i\ \text{valid}} w_i\, s(l_i, y_i)\Big)

    The value is a property of the batch, so there is no loss per row (``'none'``), no sum of them,
    and nothing for ``avg_factor`` to divide. It is a term beside another loss: in mmseg's list of
    losses, or in :class:`CombinedLoss`.

    Args:
        share_statistics: Add the statistics of all ranks, so that the value, and the mean gradient
            over ranks, are those of their joint batch. Otherwise each rank computes its own value.
        common: Of :class:`CalibrationLoss`, but for ``class_weight`` and ``compile``.

    Raises:
        TypeError: If an option is of another type.
        ValueError: If ``reduction`` is not ``'mean'``.
    """

    # The weight of a term beside another loss is its parameter.
    ranges = dict(loss_weight=(0.0, float('inf')))

    def __init__(self, *, share_statistics: bool = False, **common) -> None:
        super().__init__(**common)
        if not isinstance(share_statistics, bool):
            raise TypeError(f'share_statistics must be True or False, got {share_statistics!r}')
        for name, value in (('class_weight', self.class_weight), ('compile', self.compile_kernel)):
            if value is not None and value is not False:
                raise ValueError(
                    f'{type(self).__name__} is a separate term and has no {name}: leave it out'
                )
        self.share_statistics = share_statistics
        self._check_reduction(self.reduction)

    def statistics(self, logits: Tensor, target: Tensor, weight: Tensor, **options) -> Tensor:
        """Return sums over the rows, of which the sum over two batches is that of both together.

        Args:
            logits: ``(N, K, *)``; finite where a row is ignored.
            target: ``(N, *)`` int64 labels or ``(N, K, *)`` probabilities.
            weight: ``(N, *)``; 0 where a row is ignored.
            options: Those of :meth:`options`.
        """
        raise NotImplementedError

    def gradient(
        self, logits: Tensor, target: Tensor, weight: Tensor, slope: Tensor, **options
    ) -> Tensor:
        """Return the gradient, by the logits, of the inner product of statistics and a slope.

        By autograd; a subclass may have it by hand, where a benchmark shows what that buys.

        Args:
            logits: Those of :meth:`statistics`, as are `target`, `weight` and `options`.
            target: See there.
            weight: See there.
            slope: In the shape of the statistics.
            options: See there.
        """
        with torch.enable_grad():
            logits = logits.detach().requires_grad_()
            sums = self.statistics(logits, target, weight, **options)
        return torch.autograd.grad(sums, logits, slope)[0]

    def value(self, statistics: Tensor, **options) -> Tensor:
        """Return the scalar; 0 with a gradient of zeros where no row counts."""
        raise NotImplementedError

    def forward(
        self,
        pred: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        avg_factor: float | Tensor | None = None,
        reduction_override: str | None = None,
        ignore_index: int | None = None,
    ) -> Tensor:
        """Compute the loss of a batch; the arguments are those of :class:`CalibrationLoss`.

        ``avg_factor`` is taken, since heads pass it to every loss, and changes nothing.
        """
        self._check_reduction(reduction_override or self.reduction)
        target, valid, options = self.read_call(pred, target, weight, ignore_index)
        weights = row_weights(valid, pred, weight=weight, mean=False)
        logits = counted(pred, weights)
        weights = weights.expand(pred.shape[:1] + pred.shape[2:])
        sums = self.statistics(logits, target, weights, **options)
        return self.of_statistics(sums, **options)

    def of_statistics(self, sums: Tensor, **options) -> Tensor:
        """Return the loss of a rank's batch, all of whose statistics are given."""
        if self.share_statistics and dist.is_initialized() and dist.get_world_size() > 1:
            sums = _SumOverRanks.apply(sums)
        return self.loss_weight * self.value(sums, **options)

    def _check_reduction(self, reduction: str) -> None:
        if reduction != 'mean':
            raise ValueError(
                f'{type(self).__name__} is one number for all rows together, so reduction must be '
                f"'mean', got {reduction!r}"
            )


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        values = values.clone()
        dist.all_reduce(values)
        return values

    @staticmethod
    def backward(ctx, grad_output):
        return _SumOverRanks.apply(grad_output)


def divide(total: Tensor, count: Tensor) -> Tensor:
    """Return total / count, 0 with a gradient of 0 where nothing was counted."""
    nothing = count == 0
    return torch.where(nothing, total * 0, total / count.masked_fill(nothing, 1))
