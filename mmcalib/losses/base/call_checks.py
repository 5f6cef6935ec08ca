"""Checks of a call of a loss, and the rows of it that count."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.checks import at_least_single, check_labels, check_number, label_range

# Where a look at the labels makes nobody wait.
LOOKS_ARE_FREE_ON = ('cpu',)


def check_shapes(
    pred: Tensor, target: Tensor, weight: Tensor | None, class_weight: Tensor | None
) -> None:
    """Raise an error that names both shapes where the tensors of one call do not fit."""
    for name, value in (('pred', pred), ('target', target), ('weight', weight)):
        if value is not None and not torch.is_tensor(value):
            raise TypeError(
                f'{name} must be a tensor, got {type(value).__name__}: pass torch.as_tensor({name})'
            )
    if not pred.is_floating_point():
        raise TypeError(f'pred must be floating-point logits, got {pred.dtype}')
    if target.dtype.is_complex or target.dtype == torch.bool:
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
        raise ValueError(
            f'class_weight has {len(class_weight)} entries for {shape[1]} classes: give one '
            'for each'
        )


def computed_dtype(pred: Tensor) -> torch.dtype:
    """Return the dtype that a loss is computed in: float64 for float64, else float32."""
    return torch.float64 if pred.dtype == torch.float64 else torch.float32


def split_ignored(
    target: Tensor, num_classes: int, ignore_index: int
) -> tuple[Tensor, Tensor | None]:
    """Return int64 labels in [0, K), any of them for an ignored row, and which rows are valid.

    The second is None where a CPU finds all of them valid, which saves MbLS compiled at
    4×21×256×256 3 % of its time. This is the only place where a loss makes a GPU's host wait, and
    it does so once for a tensor of labels, however many losses of a head get it.

    Raises:
        ValueError: If a label is neither in [0, K) nor the ignored one. Inside a compiled model,
            where a look at the labels would break the graph, that is a RuntimeError of the device.
    """
    if target.device.type in LOOKS_ARE_FREE_ON and not torch.compiler.is_compiling():
        lowest, highest = label_range(target)
        if lowest >= 0 and highest < num_classes and not lowest <= ignore_index <= highest:
            return target.long(), None
    labels = target.long()  # a narrow type would compare the ignored label modulo 256
    valid = labels != ignore_index
    labels = torch.where(valid, labels, 0)
    if torch.compiler.is_compiling():
        inside = ((labels >= 0) & (labels < num_classes)).all()
        torch._assert_async(
            inside,
            f'a label is outside [0, {num_classes}) and is not ignore_index={ignore_index}. '
            'Check num_classes, or set ignore_index',
        )
        return labels, valid
    # An inference tensor has no version, so nobody knows whether it has changed.
    seen = None if target.is_inference() else (target._version, num_classes, ignore_index)
    if seen is None or getattr(target, '_seen_by_mmcalib', None) != seen:
        hint = f'They are not ignore_index={ignore_index}: check num_classes, or set ignore_index'
        check_labels(labels, num_classes, hint=hint)
        target._seen_by_mmcalib = seen
    return labels, valid


def known_rows(valid: Tensor | None, labels: Tensor) -> Tensor:
    """Return which rows are valid, in the shape of the labels, where None means all of them."""
    return torch.ones_like(labels, dtype=torch.bool) if valid is None else valid


def counted(logits: Tensor, weight: Tensor) -> Tensor:
    """Return the logits with 0 in rows of weight 0, which must contribute nothing, not even a NaN.

    Their label may be a class that is masked with -inf.
    """
    logits = at_least_single(logits)
    return logits if weight.ndim == 0 else torch.where((weight != 0).unsqueeze(1), logits, 0)


def row_weights(
    valid: Tensor | None,
    pred: Tensor,
    *,
    weight: Tensor | None,
    mean: bool,
    avg_factor: float | Tensor | None = None,
) -> Tensor:
    """Return the factor of every row in the result, ``(N, *)``, or a scalar where it is one number.

    An ignored row has 0, whatever it is divided by: the mean of nothing is 0 here, not NaN.

    Args:
        valid: Which rows are not ignored; all of them if None.
        pred: The logits.
        weight: A weight per row.
        mean: Whether to divide, by `avg_factor` or else by the number of valid rows.
        avg_factor: What to divide by. As a tensor it is not looked at, which would make a GPU
            wait; divided by 0 or less, the loss of a valid row is infinite.

    Raises:
        TypeError: If `avg_factor` is no number.
        ValueError: If it is below 0, or 0 although a row is valid.
    """
    dtype = computed_dtype(pred)
    factor = pred.new_ones((), dtype=dtype) if valid is None else valid.to(dtype)
    if mean and torch.is_tensor(avg_factor):
        factor = factor / avg_factor.to(pred.device, dtype).clamp(min=0)
        if valid is not None:
            factor = factor.masked_fill(~valid, 0)
    elif mean and avg_factor is not None:
        # A mean of no rows may well be divided by their number.
        count = pred.numel() if valid is None else factor.any()
        if check_number('avg_factor', avg_factor) == 0 and count:
            raise ValueError('avg_factor must be above 0 where a row is valid, got 0')
        factor = factor / (avg_factor or 1)
    elif mean:
        rows = pred.numel() // pred.shape[1] if valid is None else factor.sum().clamp(min=1)
        factor = factor / rows
    return factor if weight is None else factor * weight.to(dtype)
