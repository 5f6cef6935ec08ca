"""The logits in the output of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.tensors import at_least_single

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
