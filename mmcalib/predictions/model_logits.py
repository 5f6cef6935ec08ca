"""The logits in the output of a model, and checks that they and the labels fit each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.predictions.arrays import is_masked as is_masked_by_numpy
from mmcalib.predictions.labels import (
    check_class_labels,
    check_no_shares,
    label_shape,
    misfit_remedy,
    without_class_axis,
)
from mmcalib.tensors import (
    at_least_single,
    check_finite,
    check_softmax_logits,
    on_float64_device,
)

LOGIT_KEYS = ('logits', 'out')
# Takes the logits out of a model's output.
Logits = Callable[[Any], Tensor]


def logits_key(output: Any) -> str | None:
    """Return the key of the logits in a model's output; None if it is no dict of them."""
    if isinstance(output, Mapping):
        for key in LOGIT_KEYS:
            if key in output:
                return key
    return None


def find_logits(output: Any, logits: Logits | None) -> Tensor:
    """Return the logits ``(N, K, *)`` in a model's output, in float32 or float64.

    Args:
        output: The output.
        logits: A function that takes them out; None for the entry ``logits`` or ``out``, the
            attribute ``logits``, or the output itself.
    """
    if logits is not None:
        values = logits(output)
    elif torch.is_tensor(output):
        values = output
    else:
        key = logits_key(output)
        values = getattr(output, 'logits', output) if key is None else output[key]
    if hasattr(values, 'full_tensor'):  # A DTensor holds a part on each process.
        values = values.full_tensor()
    if isinstance(values, np.ndarray):  # as of an ONNX session
        values = torch.from_numpy(values)
    if not torch.is_tensor(values) or not values.is_floating_point() or not values.ndim:
        _raise_no_logits(values)
    values = at_least_single(values)
    return values[:, None] if values.ndim == 1 else values


def _raise_no_logits(values: Any) -> None:
    """Raise the error for an output that is no tensor of floats."""
    kind = type(values).__name__
    remedy = 'name the part that is, as in logits=lambda output: output[0]'
    if torch.is_tensor(values):
        kind = f'{values.dtype} of shape {tuple(values.shape)}'
        remedy = (
            'take out argmax, if they are classes; of a quantized model, give logits=lambda '
            'output: scale * (output.float() - zero_point)'
        )
        if values.is_quantized:
            remedy = 'give logits=torch.dequantize'
    elif isinstance(values, Mapping):
        kind += f' of {", ".join(map(str, values))}'
        remedy = 'name the part that is, as in logits=lambda output: output[KEY]'
    raise UserError(
        f'logits must be one tensor of floats, (N, K, …), but the model returns {kind}: {remedy}'
    )


def check_logits(logits: Tensor, labels: Tensor, ignore_index: int | None) -> tuple[Tensor, Tensor]:
    """Return logits and labels, int64, that fit each other, on a device that has float64.

    Args:
        logits: ``(N, K, *)``.
        labels: ``(N, *)``; ``(N, L)`` beside logits ``(N, L)`` of L labels.
        ignore_index: The label of predictions that are not valid.

    Raises:
        UserError: If shapes do not fit, labels are no classes of the logits, or logits are NaN or
            infinite.
    """
    logits = on_float64_device(logits)
    labels = without_class_axis(logits, labels.as_subclass(Tensor).to(logits.device))
    several_labels = labels.shape == logits.shape and logits.ndim == 2
    if not several_labels and labels.shape != label_shape(logits):
        raise UserError(
            f'logits {tuple(logits.shape)} do not fit labels {tuple(labels.shape)}: '
            f'{_shape_remedy(logits, labels)}'
        )
    labels = _whole_labels(labels, ignore_index)
    valid_labels = labels if ignore_index is None else labels[labels != ignore_index]
    num_classes = 2 if several_labels else max(logits.shape[1], 2)
    check_class_labels(valid_labels, num_classes, ignore_index)
    name = 'the output of the model'
    if several_labels:
        check_finite(logits, name)
        return logits, labels
    check_softmax_logits(logits, name, class_axis=1, labels=labels, ignore_index=ignore_index)
    return logits, labels


def _whole_labels(labels: Tensor, ignore_index: int | None) -> Tensor:
    """Return labels as int64, with the ignored one where numpy masks them."""
    is_masked = is_masked_by_numpy(labels)
    if is_masked.any():
        if ignore_index is None:
            raise UserError('numpy masks some labels: set ignore_index, such as 255, for them')
        labels = labels.masked_fill(is_masked, ignore_index)
    if labels.is_floating_point():
        fractions = labels[labels != labels.round()]  # NaN is among them.
        if len(fractions):
            check_no_shares(labels)
            raise UserError(f'labels must be whole numbers, got {fractions[:5].tolist()}')
    return labels.long()


def _shape_remedy(logits: Tensor, labels: Tensor) -> str:
    """Return what to do about labels that do not fit logits ``(N, K, *)``."""
    if not labels.ndim:
        return 'give batches, as of a DataLoader'
    if logits.ndim > 2 and labels.shape == logits.shape[:-1]:
        return (
            'the classes are the second axis: give logits=lambda output: output.movedim(-1, 1), or '
            'output.logits.movedim(-1, 1) of an output that has them'
        )
    remedy = misfit_remedy(logits, labels, 'logits')
    if remedy:
        return remedy
    if labels.ndim == logits.ndim - 1 and labels.ndim > 2:
        return f'interpolate them to {tuple(labels.shape[1:])} in logits=…'
    return 'check the axes of both'
