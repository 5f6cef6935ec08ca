"""Batches of a loader: their inputs and labels, and what to do about those that are neither."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from inspect import Parameter, Signature
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.predictions.arrays import as_tensor, mark_masked
from mmcalib.predictions.model_inputs import (
    Inputs,
    example_inputs,
    inputs_from_entries,
    inputs_from_items,
    names_entry,
)

LABEL_KEYS = ('labels', 'label', 'mask', 'target')
# Returns the inputs and the labels of a batch.
Unpack = Callable[[Any], tuple[Any, Any]]


def check_is_loader(loader: Iterable) -> None:
    """Raise an error for inputs and labels in place of batches of them, and what gives no batches.

    Raises:
        TypeError: For an object that cannot be iterated over, or gives names in place of batches,
            and for a data set of single images, whose first axis a model would take for the axis of
            images: a wrong number.
        ValueError: For a pair of inputs and labels, which is one batch.
    """
    has_items = hasattr(loader, '__iter__') or hasattr(loader, '__getitem__')
    is_data_frame = hasattr(loader, 'columns')
    if not has_items or is_data_frame or isinstance(loader, (str, Mapping)):
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


def split_batch(
    batch: Any, signature: Signature, unpack: Unpack | None = None
) -> tuple[Inputs, Tensor]:
    """Return the inputs and the labels of a batch.

    Args:
        batch: The batch.
        signature: The signature of the model, whose parameters name inputs.
        unpack: A function that returns inputs and labels; None for batches ``(inputs, labels)``,
            and dicts in which one entry alone can be the labels.

    Raises:
        TypeError: If `unpack` is no function, or does not return two things.
        UserError: If it is not known what the labels or the inputs are.
    """
    if unpack is not None:
        batch = _unpacked(batch, unpack)
    elif isinstance(batch, (tuple, list)) and len(batch) == 1 and isinstance(batch[0], Mapping):
        batch = batch[0]  # DALI gives a list of a dict for each of its pipelines.
    if isinstance(batch, Mapping):
        key = _label_key(batch, signature)
        labels = _read_labels(batch[key])
        entries = _without(batch, key)
        return inputs_from_entries(entries, signature, 'b', f'b[{key!r}]'), labels
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        _raise_no_batch(batch, _batch_remedy(batch))
    inputs, labels = batch
    labels = _read_labels(labels)
    if isinstance(inputs, Mapping):
        return inputs_from_entries(inputs, signature, 'b[0]', 'b[1]'), labels
    if isinstance(inputs, (tuple, list)):
        return inputs_from_items(inputs, len(labels), signature), labels
    return Inputs((inputs,), {}), labels


def _unpacked(batch: Any, unpack: Unpack) -> tuple[Any, Any]:
    """Return the inputs and the labels that a function of the user takes out of a batch."""
    if not callable(unpack):
        raise TypeError(f'unpack must be a function of a batch, got {unpack!r}')
    pair = unpack(batch)
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f'unpack must return (inputs, labels), got {_description(pair)}')
    return pair[0], pair[1]


def _label_key(batch: Mapping[Any, Any], signature: Signature) -> Hashable:
    """Return the key of the labels, if one entry alone can be the labels.

    What ``forward`` names is an input. Only labels, label or target that it does without may be
    there for a loss, as in models of transformers.

    Raises:
        UserError: If no entry can be the labels, or several can.
    """
    if len(batch) < 2:
        _raise_no_batch(batch, 'add the labels')
    label_keys = [key for key in LABEL_KEYS if key in batch]
    candidates = [key for key in label_keys if not _is_input(key, signature)]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        problem = f'{" and ".join(candidates)} of a batch may each be the labels: say which is'
    else:
        problem = f'none of {", ".join(map(str, batch))} is known to be the labels: say which is'
        for key, value in batch.items():
            if isinstance(value, (Tensor, np.ndarray)) and not names_entry(signature, key):
                candidates = [key]
        candidates = candidates or label_keys or list(batch)[-1:]
    readings = []
    for key in candidates:
        is_needed = names_entry(signature, key) and _is_required(key, signature)
        entries = batch if is_needed else _without(batch, key)
        example = example_inputs(entries, signature, 'b')
        readings.append(f'unpack=lambda b: ({example}, b[{key!r}])')
    raise UserError(f'{problem}, as {" or ".join(readings)}')


def _is_input(key: str, signature: Signature) -> bool:
    """Return whether an entry that may be the labels is an input of the model."""
    if not names_entry(signature, key):
        return False
    return key == 'mask' or _is_required(key, signature)


def _is_required(key: Hashable, signature: Signature) -> bool:
    return signature.parameters[key].default is Parameter.empty


def _without(batch: Mapping[Any, Any], left_out: Hashable) -> dict[Any, Any]:
    return {key: value for key, value in batch.items() if key != left_out}


def _read_labels(labels: Any) -> Tensor:
    """Return labels as a tensor, which marks those that numpy masks."""
    _, labels = mark_masked((), labels)
    labels = as_tensor('labels', labels)
    if not labels.ndim:  # A model would fail for the input of one image, with an error of its own.
        raise UserError(
            'a batch has a single label, as the samples of a data set have: give batches, as '
            'DataLoader(samples, batch_size=64)'
        )
    return labels


def _raise_no_batch(batch: Any, remedy: str) -> NoReturn:
    raise UserError(
        f'a batch must be (inputs, labels), or a dict with {", ".join(LABEL_KEYS[:-1])} or '
        f'{LABEL_KEYS[-1]}; got {_description(batch)}: {remedy}'
    )


def _description(batch: Any) -> str:
    """Return what a batch is that has no labels."""
    if isinstance(batch, Mapping):
        return f'a dict of {", ".join(map(str, batch))}'
    if isinstance(batch, (tuple, list)):
        return f'{len(batch)} things'
    return f'one {type(batch).__name__}'


def _batch_remedy(batch: Any) -> str:
    """Return what to do about a batch that is neither a pair nor a dict."""
    if isinstance(batch, (tuple, list)) and len(batch) > 2:
        if all(isinstance(item, (Mapping, tuple, list)) for item in batch):
            return 'if these are samples, collate them, as a DataLoader does by default'
        before_last = ', '.join(f'b[{index}]' for index in range(len(batch) - 1))
        return (
            f'say which is the labels, unpack=lambda b: (({before_last}), b[{len(batch) - 1}]) if '
            'the last is, or unpack=lambda b: (b[0], b[1]) if the second is'
        )
    if isinstance(batch, (Tensor, np.ndarray)):
        return 'add the labels; one batch alone goes in a list, as [(inputs, labels)]'
    if isinstance(batch, (tuple, list, str)):
        return 'add the labels'
    return 'say what its inputs and its labels are, as unpack=lambda b: (b, b.y)'
