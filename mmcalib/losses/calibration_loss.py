"""The one call contract that mmpretrain heads and mmseg decode heads share."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from mmcalib.losses.value_and_gradient import upcast, weighted_sum

REDUCTIONS = ('none', 'mean', 'sum')
CLASS_REDUCTIONS = ('mean', 'sum')


class CalibrationLoss(nn.Module):
    r"""Turns a loss per row into what either toolbox's heads expect of a loss.

    A row is one sample of ``(N, K)`` logits or one pixel of ``(N, K, H, W)`` logits. A subclass
    gives a :attr:`formula` for the rows and its :meth:`options`; this class checks the call, leaves
    ignored rows out, weights and reduces:

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

    Raises:
        TypeError: For a number that is none.
        ValueError: For an option outside its range.
    """

    formula: Callable[..., Tensor]

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
        self.ignore_index = ignore_index
        self.reduction = check_reduction(reduction)
        self.loss_weight = check_at_least_zero('loss_weight', loss_weight)
        self.loss_name = loss_name
        self.compile_kernel = compile
        if class_weight is not None:
            class_weight = torch.as_tensor(class_weight, dtype=torch.float32)
            if class_weight.ndim != 1 or not (class_weight >= 0).all():
                raise ValueError(
                    'class_weight must be a flat list of weights of at least 0, one per class; '
                    f'got {class_weight.tolist()}'
                )
        # Not in the state dict: checkpoints of other losses must load without complaint.
        self.register_buffer('class_weight', class_weight, persistent=False)

    def options(self) -> dict:
        """Return the arguments of the formula beside the logits, the target and class weights."""
        raise NotImplementedError

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
            avg_factor: What the sum is divided by under ``'mean'``.
            reduction_override: Replaces the reduction of the constructor for this call.
            ignore_index: Replaces the ignored label of the constructor for this call.

        Returns:
            A scalar, or one loss per row for ``'none'`` (0 where ignored). With every row ignored:
            0, which still has a gradient (of zeros).

        Raises:
            TypeError: If ``pred`` is not floating-point, or ``target`` boolean or complex.
            ValueError: If shapes do not fit, a label is neither in [0, K) nor the ignored one, or
                ``avg_factor`` comes with ``'sum'``.
        """
        reduction = check_reduction(reduction_override or self.reduction)
        if avg_factor is not None and reduction == 'sum':
            raise ValueError("avg_factor divides a mean; it cannot be used with reduction='sum'")
        ignore_index = self.ignore_index if ignore_index is None else ignore_index

        check_shapes(pred, target, weight, self.class_weight)
        dtype = torch.float64 if pred.dtype == torch.float64 else torch.float32
        options = self.options()
        if self.class_weight is not None:
            options['class_weight'] = self.class_weight.to(pred.device, dtype)

        if target.is_floating_point():
            target, valid = target.to(dtype), None
        else:
            target, valid = split_ignored(target.long(), pred.shape[1], ignore_index)
        row_weight = pred.new_ones((), dtype=dtype) if valid is None else valid.to(dtype)
        if reduction == 'mean':
            if avg_factor is None:
                rows = pred.numel() // pred.shape[1]
                avg_factor = rows if valid is None else row_weight.sum()
            divisor = torch.as_tensor(avg_factor, dtype=dtype, device=pred.device)
            # A divisor of 0 comes with a sum of 0, and the mean of nothing is 0 here, not NaN.
            row_weight = row_weight / divisor.clamp(min=torch.finfo(torch.float32).eps)
        if weight is not None:
            row_weight = row_weight * weight.to(dtype)
        row_weight = row_weight * self.loss_weight

        if reduction == 'none':
            rows = self.formula(upcast(pred), target, **options)
            return rows * row_weight
        return weighted_sum(
            self.formula, pred, target, row_weight, options, compile=self.compile_kernel
        )


def check_reduction(reduction: str) -> str:
    """Return `reduction`, or raise a ValueError that names the choices."""
    if reduction not in REDUCTIONS:
        raise ValueError(f'reduction must be one of {REDUCTIONS}, got {reduction!r}')
    return reduction


def check_class_reduction(class_reduction: str) -> str:
    """Return `class_reduction`, or raise a ValueError that names the choices."""
    if class_reduction not in CLASS_REDUCTIONS:
        raise ValueError(
            f'class_reduction must be one of {CLASS_REDUCTIONS}, got {class_reduction!r}'
        )
    return class_reduction


def check_at_least_zero(name: str, value: float) -> float:
    """Return `value`; a TypeError if it is no number, a ValueError if below 0 or not finite."""
    if not isinstance(value, (int, float)):
        raise TypeError(f'{name} must be a number, got {value!r}')
    if not 0 <= value < float('inf'):
        raise ValueError(f'{name} must be a finite number of at least 0, got {value!r}')
    return value


def check_shapes(
    pred: Tensor, target: Tensor, weight: Tensor | None, class_weight: Tensor | None
) -> None:
    """Raise an error that names both shapes where the tensors of one call do not fit."""
    if not pred.is_floating_point():
        raise TypeError(f'pred must be floating-point logits, got {pred.dtype}')
    if target.is_complex() or target.dtype == torch.bool:
        raise TypeError(f'target must be integer labels or float probabilities, got {target.dtype}')
    shape = tuple(pred.shape)
    if pred.ndim < 2:
        raise ValueError(f'pred must have the shape (N, K) or (N, K, H, W), got {shape}')
    if shape[1] < 2:
        raise ValueError(
            f'pred {shape} has one class; a softmax loss needs at least two. For a binary task set '
            'out_channels=2 (mmseg) or num_classes=2 (mmpretrain)'
        )
    rows = shape[:1] + shape[2:]
    soft = target.is_floating_point()
    if tuple(target.shape) != (shape if soft else rows):
        raise ValueError(
            f'{"soft" if soft else "integer"} target {tuple(target.shape)} does not fit pred '
            f'{shape}: expected labels {rows}, or float probabilities {shape}'
        )
    if weight is not None and tuple(weight.shape) != rows:
        raise ValueError(
            f'weight {tuple(weight.shape)} does not fit pred {shape}: expected a weight per row, '
            f'{rows}'
        )
    if class_weight is not None and len(class_weight) != shape[1]:
        raise ValueError(f'class_weight has {len(class_weight)} entries for {shape[1]} classes')


def split_ignored(
    target: Tensor, num_classes: int, ignore_index: int
) -> tuple[Tensor, Tensor | None]:
    """Return labels within [0, num_classes), any of them for an ignored row, and which are valid.

    The second is None where no row is ignored.
    """
    if not torch.compiler.is_compiling() and not 0 <= ignore_index < num_classes:
        lowest, highest = label_range(target)
        if lowest >= 0 and highest < num_classes:
            return target, None
    valid = target != ignore_index
    labels = target.masked_fill(~valid, 0)
    check_labels(labels, num_classes, ignore_index)
    return labels, valid


def label_range(target: Tensor) -> tuple[int, int]:
    """Return the lowest and the highest label, 0 and 0 of none, in one wait for a GPU."""
    if target.numel() == 0:
        return 0, 0
    lowest, highest = torch.stack(target.aminmax()).tolist()
    return lowest, highest


def check_labels(labels: Tensor, num_classes: int, ignore_index: int) -> None:
    """Raise a ValueError that names the labels outside [0, num_classes), if there are any."""
    if torch.compiler.is_compiling():  # a data-dependent branch would break the graph
        return
    lowest, highest = label_range(labels)
    if lowest < 0 or highest >= num_classes:
        wrong = labels[(labels < 0) | (labels >= num_classes)]
        names = wrong.unique().tolist()
        shown = ', '.join(map(str, names[:5])) + (', …' if len(names) > 5 else '')
        raise ValueError(
            f'{len(wrong)} labels are outside [0, {num_classes}) and are not '
            f'ignore_index={ignore_index}: {shown}. Check num_classes, or set ignore_index'
        )
