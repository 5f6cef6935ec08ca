"""Batches of a loader: their inputs and labels, and what to do about those that are neither."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mmcalib.errors import UserError

LABEL_KEYS = ('labels', 'label', 'mask', 'target')
# A dict that has one of these keys gives the model this input alone.
INPUT_KEYS = ('image', 'data')


def check_is_loader(loader: Iterable) -> None:
    """Raise an error for inputs and labels in place of batches of them, and what gives no batches.

    Raises:
        TypeError: For an object that cannot be iterated over, and a data set of single images,
            whose first axis a model would take for the axis of images: a wrong number.
        ValueError: For a pair of inputs and labels, which is one batch.
    """
    if not hasattr(loader, '__iter__') and not hasattr(loader, '__getitem__'):
        raise TypeError(
            f'a loader must give batches (inputs, labels), as a DataLoader or a list of them does; '
            f'got {type(loader).__name__}'
        )
    # Streams, such as those of webdataset, may give batches.
    is_stream = isinstance(loader, torch.utils.data.IterableDataset)
    if isinstance(loader, torch.utils.data.Dataset) and not is_stream:
        raise TypeError(
            f'a loader must give batches, and {type(loader).__name__} is a data set of single '
            'images: give a DataLoader of it, as DataLoader(dataset, batch_size=64)'
        )
    is_pair = isinstance(loader, (tuple, list)) and len(loader) == 2
    if is_pair and isinstance(loader[1], (Tensor, np.ndarray)):
        raise UserError(
            'a loader must give batches, and a pair of inputs and labels is one batch: give it '
            'in a list, as [(inputs, labels)], or a DataLoader of a TensorDataset'
        )


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Return the inputs and the labels of a batch."""
    if isinstance(batch, Mapping):
        for label_key in LABEL_KEYS:
            if label_key in batch:
                inputs = {key: value for key, value in batch.items() if key != label_key}
                return main_input(inputs), batch[label_key]
    elif isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1]
    raise UserError(
        f'a batch must be (inputs, labels), or a dict with {", ".join(LABEL_KEYS[:-1])} or '
        f'{LABEL_KEYS[-1]}; got {_description(batch)}: {_batch_remedy(batch)}'
    )


def main_input(inputs: Mapping[Any, Any]) -> Any:
    """Return the image or the data among named inputs, or all of them if they have neither."""
    for key in INPUT_KEYS:
        if key in inputs:
            return inputs[key]
    return inputs


def _description(batch: Any) -> str:
    """Return what a batch is that has no labels."""
    if isinstance(batch, Mapping):
        return f'a dict of {", ".join(map(str, batch))}'
    if isinstance(batch, (tuple, list)):
        return f'{len(batch)} things'
    return f'one {type(batch).__name__}'


def _batch_remedy(batch: Any) -> str:
    """Return what to do about a batch without labels."""
    keys: list = []
    if isinstance(batch, Mapping):
        keys = list(batch)
    elif isinstance(batch, (tuple, list)):
        keys = list(range(len(batch)))
    if len(keys) > 1:
        return f'wrap the loader, as in [(b[{keys[0]!r}], b[{keys[1]!r}]) for b in loader]'
    if isinstance(batch, (Tensor, np.ndarray)):
        return 'add the labels; one batch alone goes in a list, as [(inputs, labels)]'
    return 'add the labels'


def token_ids(batch: Any) -> Tensor | None:
    """Return the token ids ``(N, L)`` that a batch gives to a model, None if it has none."""
    inputs, _ = split_batch(batch)
    if isinstance(inputs, Mapping):
        inputs = inputs.get('input_ids')
    elif isinstance(inputs, (tuple, list)) and inputs:
        inputs = inputs[0]
    if not torch.is_tensor(inputs) or inputs.is_floating_point() or inputs.ndim != 2:
        return None
    return inputs


def copy_inputs(inputs: Any, device: torch.device | None) -> Any:
    """Return inputs with copies of their tensors, since a model may write into its inputs.

    Args:
        inputs: Tensors, and dicts, tuples and lists of them.
        device: The device of the copies; None for that of each tensor.
    """
    if torch.is_tensor(inputs):
        return inputs.to(inputs.device if device is None else device, copy=True)
    if isinstance(inputs, Mapping):
        return {name: copy_inputs(value, device) for name, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return [copy_inputs(value, device) for value in inputs]
    return inputs


def run_model(model: Callable, inputs: Any) -> Any:
    """Return the output of a model for inputs: a dict as keywords, a tuple as arguments.

    Raises:
        UserError: If the model fails for inputs that are no tensors, or that it does not take.
    """
    try:
        if isinstance(inputs, Mapping):
            return model(**inputs)
        if isinstance(inputs, (tuple, list)):
            return model(*inputs)
        return model(inputs)
    except (AttributeError, TypeError, ValueError) as error:
        remedy = _inputs_remedy(model, inputs)
        if remedy is None:
            raise
        raise UserError(f'the model cannot take a batch: {remedy}') from error


def _inputs_remedy(model: Callable, inputs: Any) -> str | None:
    """Return what to do about inputs that a model has failed for; None if nobody knows."""
    if isinstance(inputs, Mapping):
        remedy = _keys_remedy(model, inputs)
        if remedy is not None:
            return remedy
        values = list(inputs.values())
    elif isinstance(inputs, (tuple, list)):
        values = list(inputs)
    else:
        values = [inputs]
    parts = []
    for value in values:
        parts += value if isinstance(value, list) else [value]
    if any(isinstance(part, str) for part in parts):
        return 'its inputs are texts: give the tensors of a tokenizer'
    if any(isinstance(part, np.ndarray) for part in parts):
        return 'its inputs are numpy arrays: give tensors, as torch.from_numpy(x).float()'
    if any(isinstance(value, list) and _is_number(value) for value in values):
        return 'its inputs are lists of numbers: give tensors, as torch.tensor(x)'
    return None


def _keys_remedy(model: Callable, inputs: Mapping[Any, Any]) -> str | None:
    """Return which keys of a batch a model does not take; None if it takes all."""
    forward = model.forward if isinstance(model, nn.Module) else model
    parameters = inspect.signature(forward).parameters
    takes_any_key = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    unknown_keys = [str(key) for key in inputs if key not in parameters]
    if takes_any_key or not unknown_keys:
        return None
    return (
        f'its forward takes {", ".join(parameters)}, and not {", ".join(unknown_keys)}: leave '
        'these keys out of the batches'
    )


def _is_number(value: Any) -> bool:
    """Return whether a value is a number, or a list that begins with one, however deep."""
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, (int, float))
