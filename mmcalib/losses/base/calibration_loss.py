"""The one call contract that mmpretrain heads and mmseg decode heads share."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from mmcalib.checks import check_choice, check_ignore_index, check_number
from mmcalib.losses.base.call_checks import (
    check_shapes,
    computed_dtype,
    counted,
    known_rows,
    row_weights,
    split_ignored,
)
from mmcalib.losses.base.value_and_gradient import weighted_sum

REDUCTIONS = ('none', 'mean', 'sum')
CLASS_REDUCTIONS = ('mean', 'sum')


class CalibrationLoss(nn.Module):
    r"""Turns a loss per row into a loss that the heads of both toolboxes can call.

    A row is one sample of ``(N, K)`` logits or one pixel of ``(N, K, H, W)`` logits. A subclass
    gives a :attr:`formula` for the rows, its :meth:`options` and their :attr:`ranges`; this class
    checks the call, leaves ignored rows out, weights and reduces:

    .. math:: L = \text{loss\_weight} \cdot \frac{\sum_{i\ \text{valid}} w_i \ell_i}{D},
        \qquad D = \text{avg\_factor, else the number of valid rows}

    Where the toolboxes' own losses differ: mmseg's ``CrossEntropyLoss`` divides by all rows,
    ignored ones too, unless ``avg_non_ignore=True``, and by the sum of class weights where those
    are given; mmpretrain's divides by N. Here ``class_weight`` scales the cross-entropy term of a
    row and never enters D.

    Args:
        class_weight: K weights of the cross-entropy term, one per class.
        ignore_index: Index label that takes no part. mmseg's heads pass theirs with every call,
            which wins over this one; PIDHead and DDRHead do not, so set 255 here for those.
        reduction: ``'mean'``, ``'sum'`` or ``'none'`` (a loss per row, in the target's shape).
        loss_weight: Factor of the result.
        loss_name: Key in mmseg's log. It must contain "loss", or mmengine would leave the term out
            of the gradient without a word.
        compile: Compute value and gradient in one kernel of ``torch.compile``: the first step of a
            shape takes seconds longer, the others are about as cheap as cross-entropy or cheaper.
            Without a working compiler the loss runs eagerly, with one warning. ``'none'`` is
            always eager.

    Attributes:
        formula: ``formula(logits, target, *, class_weight, **options)`` returns the loss of every
            row in plain, differentiable operations.
        by_hand: The same with the gradient, where a benchmark shows what that buys.
        no_soft_targets: Why targets must be labels; None where they may be probabilities.
        reach: How many pixels beyond its own :meth:`look_around` sees on each side; None where it
            does not say, so that only the whole map will do.
        ranges: The least and the largest value of each number that may change while training.

    Raises:
        TypeError: For an option of another type; a boolean is no number.
        ValueError: For an option outside its range.
    """

    formula: Callable[..., Tensor]
    by_hand: Callable[..., tuple[Tensor, Tensor]] | None = None
    ranges: Mapping[str, tuple[float, float]] = {}
    no_soft_targets: str | None = None
    reach: int | None = None

    def __init__(
        self,
        *,
        class_weight: Sequence[float] | None = None,
        ignore_index: int = -100,
        reduction: str = 'mean',
        loss_weight: float = 1.0,
        loss_name: str = 'loss_calibration',
        compile: bool = False,
    ) -> None:
        super().__init__()
        if 'loss' not in loss_name:
            raise ValueError(
                f'loss_name must contain "loss", or mmengine leaves the term out of the gradient; '
                f'got {loss_name!r}'
            )
        if not isinstance(compile, bool):
            raise TypeError(f'compile must be True or False, got {compile!r}')
        self.ignore_index = check_ignore_index(ignore_index)
        self.reduction = check_choice('reduction', reduction, REDUCTIONS)
        self.loss_weight = check_number('loss_weight', loss_weight)
        self.loss_name = loss_name
        self.compile_kernel = compile
        if class_weight is not None:
            weights = class_weight.tolist() if torch.is_tensor(class_weight) else class_weight
            class_weight = torch.tensor([check_number('class_weight', w) for w in weights])
        # Not in the state dict: checkpoints of other losses must load without complaint.
        self.register_buffer('class_weight', class_weight, persistent=False)

    def options(self) -> dict:
        """Return the arguments of the formula beside the logits, the target and class weights."""
        raise NotImplementedError

    def check_parameter(self, name: str, value: float) -> float:
        """Return a value that a parameter of :attr:`ranges` may have, or raise an error."""
        least, most = self.ranges[name]
        return check_number(name, value, least=least, most=most)

    def set_parameters(self, **values: float) -> None:
        """Set parameters of :attr:`ranges`, as the constructor and a schedule do."""
        for name, value in values.items():
            setattr(self, name, float(self.check_parameter(name, value)))

    def extra_repr(self) -> str:
        options = ', '.join(f'{key}={value!r}' for key, value in self.options().items())
        return f'{options}, compile=True' if self.compile_kernel else options

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
        """Compute the loss of a batch.

        Args:
            pred: Logits ``(N, K)`` or ``(N, K, H, W)``. float16 and bfloat16 are computed in
                float32, float64 stays.
            target: Integer labels ``(N,)`` or ``(N, H, W)``, or probabilities in the shape of
                ``pred`` (Mixup, CutMix).
            weight: A weight per row, in the shape of the labels.
            avg_factor: What the sum is divided by under ``'mean'``; above 0.
            reduction_override: Replaces the reduction of the constructor for this call.
            ignore_index: Replaces the ignored label of the constructor for this call.

        Returns:
            A scalar, or one loss per row for ``'none'`` (0 where ignored). With every row ignored:
            0, which still has a gradient (of zeros).

        Raises:
            TypeError: If ``pred`` is no floating-point tensor, ``target`` is no tensor or is
                boolean or complex, or ``weight`` is no tensor.
            ValueError: If shapes do not fit, a label is neither in [0, K) nor the ignored one, or
                ``avg_factor`` is 0 or less or comes with ``'sum'``.
        """
        reduction = check_choice('reduction', reduction_override or self.reduction, REDUCTIONS)
        if avg_factor is not None and reduction == 'sum':
            raise ValueError("avg_factor divides a mean; it cannot be used with reduction='sum'")
        target, valid, options = self.read_call(pred, target, weight, ignore_index)
        row_weight = self.loss_weight * row_weights(
            valid,
            pred,
            weight=weight,
            mean=reduction == 'mean',
            avg_factor=avg_factor,
        )
        if reduction == 'none':
            return self.formula(counted(pred, row_weight), target, **options) * row_weight
        return weighted_sum(
            self.formula,
            pred,
            target,
            row_weight,
            options,
            by_hand=self.by_hand,
            compile=self.compile_kernel,
        )

    def read_call(
        self, pred: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int | None
    ) -> tuple[Tensor, Tensor | None, dict]:
        """Check a call; return the target of the formula, valid rows, and options."""
        target, valid, options = self.read_rows(pred, target, weight, ignore_index)
        soft = target.is_floating_point()
        if not soft and type(self).look_around is not CalibrationLoss.look_around:
            known = known_rows(valid, target)
            target, more = self.look_around(target, known, pred.shape[1], computed_dtype(pred))
            options = {**options, **more}  # PyTorch 2.6 compiles no `|` of dicts
        return target, valid, options

    def read_rows(
        self, pred: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int | None
    ) -> tuple[Tensor, Tensor | None, dict]:
        """Check a call; return labels within [0, K) or probabilities, valid rows, and options.

        Of `pred` only the shape, the dtype and the device are read.
        """
        check_shapes(pred, target, weight, self.class_weight)
        dtype = computed_dtype(pred)
        options = self.options()
        if self.class_weight is not None:
            options['class_weight'] = self.class_weight.to(pred.device, dtype)
        if not target.is_floating_point():
            ignore_index = self.ignore_index if ignore_index is None else ignore_index
            return *split_ignored(target, pred.shape[1], ignore_index), options
        if self.no_soft_targets:
            raise ValueError(
                f'{type(self).__name__} takes integer labels, not probabilities: '
                f'{self.no_soft_targets}'
            )
        return target.to(dtype), None, options

    def look_around(
        self, labels: Tensor, valid: Tensor, num_classes: int, dtype: torch.dtype
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the target of the formula, and options that depend on the map of labels.

        A loss that needs the neighbourhood of a pixel sees it here, before rows go their own ways:
        it returns another target, or options in the shape of the logits. Others are not asked.

        Args:
            labels: ``(N, *)``; any label in [0, K) where a row is ignored.
            valid: ``(N, *)``, which rows are not ignored.
            num_classes: K.
            dtype: That the loss is computed in.
        """
        # PyTorch 2.3 compiles this call whether or not it is made.
        return labels, {}
