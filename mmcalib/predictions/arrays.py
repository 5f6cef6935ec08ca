"""Arrays, tensors and lists that users give, as tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray | Tensor | Sequence
# This label stands for one that numpy masks: it is no class, and nobody would ignore it.
MASKED = -(2**63)


def split_mask(values: Array) -> tuple[Array, np.ndarray | None]:
    """Return values with 0 where numpy masks them, and the mask; None if nothing is masked."""
    if isinstance(values, (list, tuple)):
        values = _stack_masked(values)
    if not isinstance(values, np.ma.MaskedArray):
        return values, None
    mask = np.ma.getmaskarray(values)
    if not mask.any():
        return values.data, None
    return values.filled(0), mask


def _stack_masked(values: Sequence) -> Array:
    """Return masked arrays in a list, or masked numbers, as one masked array.

    numpy would drop the masks of a list.
    """
    if not any(isinstance(value, np.ma.MaskedArray) for value in values):
        return values
    masks = []
    numbers = []
    for value in values:
        masks.append(np.ma.getmaskarray(value))
        numbers.append(0 if value is np.ma.masked else np.ma.filled(value, 0))
    return np.ma.array(np.array(numbers), mask=np.array(masks))


def mark_masked(values: Array, labels: Array) -> tuple[Array, Array]:
    """Return values and labels without masks of numpy; the label is `MASKED` if either was masked.

    It prevents a wrong number: numpy drops the mask of an array that becomes a tensor.

    Args:
        values: ``(N, K)`` or ``(N, K, *)``; or of the labels' own shape.
        labels: ``(N,)`` or ``(N, *)``.
    """
    values, value_mask = split_mask(values)
    labels, mask = split_mask(labels)
    if value_mask is not None:
        if np.shape(labels) != value_mask.shape and value_mask.ndim > 1:
            value_mask = value_mask.any(axis=1)
        if math.prod(np.shape(labels)) != value_mask.size:
            return values, labels  # A later check of their shapes raises an error.
        value_mask = value_mask.reshape(np.shape(labels))
        mask = value_mask if mask is None else mask | value_mask
    if mask is None:
        return values, labels
    labels = as_tensor('labels', labels)
    labels = labels.double() if labels.is_floating_point() else labels.long()
    return values, labels.masked_fill(torch.from_numpy(mask).to(labels.device), MASKED)


def is_masked(labels: Tensor) -> Tensor:
    """Return where numpy masks a label.

    Labels of other types than int64 and float64 cannot hold the mark, which would be 0 in them.
    """
    if labels.dtype not in (torch.int64, torch.float64):
        return torch.zeros_like(labels, dtype=torch.bool)
    return labels == MASKED


def valid_labels(labels: Tensor, ignore_index: int | None) -> Tensor:
    """Return the mask of the labels that are neither ignored nor masked by numpy."""
    valid = ~is_masked(labels)
    if ignore_index is None:
        return valid
    return valid & (labels != ignore_index)


def as_tensor(name: str, values: Array) -> Tensor:
    """Return numbers as a tensor without a gradient, on the device that they are on.

    Args:
        name: The name of the values in errors.
        values: An array, a tensor, or a list of numbers or of tensors.

    Raises:
        TypeError: For anything else.
        ValueError: For a list of rows that differ in length, or values that numpy masks.
    """
    values, mask = split_mask(values)
    if mask is not None:
        raise ValueError(
            f'{name} has {int(mask.sum())} masked values, and nothing says what they are: leave '
            'them out, or give their values by filled()'
        )
    if isinstance(values, (list, tuple)) and values and all(map(torch.is_tensor, values)):
        values = torch.stack(tuple(values))
    if torch.is_tensor(values):
        return values.detach()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f'{name} must be rows of one length: {error}') from error
    if array.dtype.kind not in 'fiub':
        remedy = ''
        if callable(values):
            remedy = ': a model goes to evaluate(model, loader)'
        elif array.size and isinstance(array.flat[0], str):
            remedy = f' such as {str(array.flat[0])!r}: number the classes as the model does'
        raise TypeError(
            f'{name} must be an array, a tensor or a list of numbers, got '
            f'{type(values).__name__} of {array.dtype}{remedy}'
        )
    array = array.astype(_torch_dtype(array.dtype), order='C', copy=False)
    # torch takes neither negative strides nor arrays that it may not write to.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _torch_dtype(dtype: np.dtype) -> np.dtype:
    """Return the nearest type that torch has: it lacks unsigned, foreign and extended ones."""
    if dtype.kind == 'u':
        return np.dtype(np.uint8 if dtype.itemsize == 1 else np.int64)
    native_dtype = dtype.newbyteorder('=')
    return np.dtype(np.float64) if native_dtype == np.longdouble else native_dtype


def as_floats(name: str, values: Array) -> Tensor:
    """Return floats as a tensor on the CPU.

    Raises:
        TypeError: For anything else.
    """
    tensor = as_tensor(name, values).cpu()
    if not tensor.is_floating_point():
        raise TypeError(f'{name} must be floats, got {_dtype_name(tensor)}')
    return tensor


def as_integers(name: str, values: Array) -> Tensor:
    """Return integers as an int64 tensor on the CPU.

    Raises:
        TypeError: For anything else; nothing at all may be of any type, as an empty list is.
    """
    tensor = as_tensor(name, values).cpu()
    is_boolean = tensor.dtype == torch.bool
    is_wrong = is_boolean or tensor.is_floating_point() or tensor.is_complex()
    if is_wrong and tensor.numel():
        remedy = f'{name}.long()' if torch.is_tensor(values) else f'np.asarray({name}).astype(int)'
        if is_boolean:
            remedy += ', or conf=… and correct=… for what came true'
        raise TypeError(f'{name} must be integers, got {_dtype_name(tensor)}: give {remedy}')
    return tensor.long()


def _dtype_name(values: Tensor) -> str:
    return str(values.dtype).removeprefix('torch.')  # The name that numpy has for it too.
