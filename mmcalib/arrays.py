"""Arrays that users give, as tensors, and the states of the generators of random numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from mmcalib.checks import check_ignore_index, check_labels

Array = np.ndarray | Tensor | Sequence
A = Array | None


def tensor_of(name: str, values: Array) -> Tensor:
    """Return numbers as a tensor without a gradient, on the device that they are on.

    Raises:
        TypeError: For anything else.
        ValueError: For a list of rows that differ in length.
    """
    if isinstance(values, (list, tuple)) and values and all(map(torch.is_tensor, values)):
        values = torch.stack(tuple(values))
    if torch.is_tensor(values):
        return values.detach()
    try:
        values = np.asarray(values)
    except ValueError as error:
        raise ValueError(f'{name} must be rows of one length: {error}') from error
    if values.dtype.kind not in 'fiub':
        raise TypeError(
            f'{name} must be an array, a tensor or a list of numbers, got {values.dtype}'
        )
    # torch has no unsigned integers of more than 8 bits, foreign byte orders, negative strides, nor
    # arrays that it may not write to.
    kinds = {'u': np.uint8 if values.itemsize == 1 else np.int64}
    kind = kinds.get(values.dtype.kind, values.dtype.newbyteorder('='))
    values = values.astype(np.float64 if kind == np.longdouble else kind, 'C', copy=False)
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def floats_of(name: str, values: Array) -> Tensor:
    """Return floats as a tensor on the CPU.

    Raises:
        TypeError: For anything else.
    """
    values = tensor_of(name, values).cpu()
    if not values.is_floating_point():
        raise TypeError(f'{name} must be floats, got {_name(values)}')
    return values


def integers_of(name: str, values: Array) -> Tensor:
    """Return integers as an int64 tensor on the CPU.

    Raises:
        TypeError: For anything else; nothing at all may be of any type, as an empty list is.
    """
    values = tensor_of(name, values).cpu()
    wrong = values.is_floating_point() or values.is_complex() or values.dtype == torch.bool
    if wrong and values.numel():
        hint = ' (for what came true, give conf=… and correct=…)' * (values.dtype == torch.bool)
        raise TypeError(f'{name} must be integers, got {_name(values)}{hint}')
    return values.long()


def labelled_rows(
    name: str, values: Tensor, labels: Tensor, ignore_index: int | None
) -> tuple[Tensor, Tensor]:
    """Return the rows ``(M, K)`` and the labels ``(M,)`` of what is not ignored.

    Args:
        name: What errors call the values.
        values: ``(N, K)`` or ``(N, K, *)``; ``(N,)`` or K = 1 where there are two classes.
        labels: ``(N,)`` or ``(N, *)`` int64.
        ignore_index: The label of what to leave out; None leaves nothing out.

    Raises:
        ValueError: If shapes do not fit, or labels are out of range.
    """
    binary = values[:, None] if values.ndim == 1 else values
    shape = binary.shape[:1] + binary.shape[2:]
    if binary.ndim < 2 or not binary.shape[1] or labels.shape != shape:
        hint = '; for one-hot labels, give labels.argmax(1)' * (labels.shape == binary.shape)
        if labels.shape == binary.shape[:-1]:
            hint = '; the classes are the second axis, so move the last one there'
        raise ValueError(
            f'{name} must be (N, K) with labels (N,), or (N, K, H, W) with labels (N, H, W); got '
            f'{tuple(values.shape)} and {tuple(labels.shape)}{hint}'
        )
    rows, labels = binary.movedim(1, -1).flatten(0, -2), labels.flatten()
    hint = 'To leave out a label such as 255, set ignore_index'
    if ignore_index is not None:
        valid = labels != check_ignore_index(ignore_index)
        rows, labels = rows[valid], labels[valid]
        hint = f'They are not ignore_index={ignore_index}'
    check_labels(labels, max(rows.shape[1], 2), name='labels', hint=hint)
    return rows, labels


def _name(values: Tensor) -> str:
    return str(values.dtype).removeprefix('torch.')  # as numpy calls it too


@contextmanager
def unchanged_randomness() -> Iterator[None]:
    """Put the states of the random number generators back, of Python, NumPy and PyTorch."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
