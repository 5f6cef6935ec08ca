"""Arrays, tensors and lists that users give, as tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mmcalib.predictions.model_inputs import model_remedy

Array = np.ndarray | Tensor | Sequence


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


def as_tensors(
    name: str, values: Array, labels: Array, label_name: str = 'labels'
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return values and labels as tensors, and the mask of what numpy does not mask; None for all.

    It prevents a wrong number: numpy drops the mask of an array that becomes a tensor.

    Args:
        name: The name of the values in errors.
        values: ``(N, K)`` or ``(N, K, *)``; or of the labels' own shape.
        labels: ``(N,)`` or ``(N, *)``.
        label_name: The name of the labels in errors.
    """
    values, value_mask = split_mask(values)
    labels, mask = split_mask(labels)
    values = as_tensor(name, values)
    labels = as_tensor(label_name, labels)
    if value_mask is not None:
        if labels.shape != value_mask.shape and value_mask.ndim > 1:
            value_mask = value_mask.any(axis=1)
        if labels.numel() == value_mask.size:  # Otherwise a check of the shapes refuses both.
            value_mask = value_mask.reshape(labels.shape)
            mask = value_mask if mask is None else mask | value_mask
    return values, labels, None if mask is None else torch.from_numpy(~mask)


def as_scores(
    name: str, values: Array, labels: Array, label_name: str = 'labels'
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return :func:`as_tensors` of values that are floats.

    Raises:
        TypeError: For other values, which may be the labels if these are fractions.
    """
    values, labels, valid = as_tensors(name, values, labels, label_name)
    have_fractions = labels.is_floating_point() and (labels != labels.round()).any()
    if not values.is_floating_point() and have_fractions:
        raise TypeError(
            f'{name} must be floats, got {_dtype_name(values)}, and {label_name} are '
            f'{_dtype_name(labels)}: {name} come first, and then {label_name}'
        )
    check_floats(name, values)
    return values, labels, valid


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
    if hasattr(values, 'full_tensor'):
        raise TypeError(
            f'{name} is a DTensor, of which each process holds a part: give {name}.full_tensor(), '
            'and gather=lambda value: [value] to a stream that gets it on each process'
        )
    if torch.is_tensor(values):
        return values.detach()
    if isinstance(values, str):
        raise TypeError(f'{name} must be an array, got the text {values!r}: load its file first')
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f'{name} must be rows of one length: {error}') from error
    if array.dtype.kind not in 'fiub':
        raise TypeError(
            f'{name} must be an array, a tensor or a list of numbers, got '
            f'{type(values).__name__} of {array.dtype}{_array_remedy(values, array)}'
        )
    array = array.astype(_torch_dtype(array.dtype), order='C', copy=False)
    # torch takes neither negative strides nor arrays that it may not write to.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _array_remedy(values: object, array: np.ndarray) -> str:
    """Return the end of an error for what is no array of numbers, '' if nobody knows what it is."""
    remedy = model_remedy(values)
    if remedy:
        return f'{remedy}, to evaluate(model, loader)'
    if hasattr(values, 'predict_proba'):
        return ': give what its predict_proba returns'
    if callable(values):
        return ': a model goes to evaluate(model, loader)'
    if hasattr(values, 'select_dtypes'):  # A data frame.
        return ": give its columns of numbers, as by select_dtypes('number')"
    if array.size and isinstance(array.flat[0], str):
        return f' such as {str(array.flat[0])!r}: number the classes as the model does'
    return ''


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
    check_floats(name, tensor)
    return tensor


def check_floats(name: str, values: Tensor) -> None:
    """Raise a TypeError for a tensor of other numbers than floats."""
    if values.is_floating_point():
        return
    remedy = ''
    if values.is_quantized:
        remedy = f': give {name}.dequantize()'
    elif values.dtype in (torch.int8, torch.uint8):
        remedy = f': of a quantized model, give scale * ({name}.float() - zero_point)'
    elif name in ('probs', 'conf'):
        remedy = ': give probabilities, as those of predict_proba, in place of predicted classes'
    raise TypeError(f'{name} must be floats, got {_dtype_name(values)}{remedy}')


def as_integers(name: str, values: Array) -> Tensor:
    """Return integers as an int64 tensor on the CPU.

    Raises:
        TypeError: For anything else; nothing at all may be of any type, as an empty list is.
    """
    tensor = as_tensor(name, values).cpu()
    is_boolean = tensor.dtype == torch.bool
    is_wrong = is_boolean or tensor.is_floating_point() or tensor.is_complex()
    if is_wrong and tensor.numel():
        if tensor.is_floating_point() and (tensor != tensor.round()).any():
            fraction = tensor[tensor != tensor.round()][0].item()
            raise TypeError(
                f'{name} must be integers, got {_dtype_name(tensor)} such as {fraction:g}: give '
                'the classes, and scores before them'
            )
        remedy = f'{name}.long(), or {name}.astype(int) of an array'
        if is_boolean:
            remedy += ', or conf=… and correct=… for what came true'
        raise TypeError(f'{name} must be integers, got {_dtype_name(tensor)}: give {remedy}')
    return tensor.long()


def _dtype_name(values: Tensor) -> str:
    return str(values.dtype).removeprefix('torch.')  # The name that numpy has for it too.
