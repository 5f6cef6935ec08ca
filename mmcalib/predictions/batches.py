"""Batches of a loader: their inputs and labels, and what to do about those that are neither."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from inspect import Parameter, Signature
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.predictions.arrays import Array
from mmcalib.predictions.model_inputs import (
    INPUT_KEYS,
    NO_INPUT_WORDS,
    Inputs,
    arrange,
    can_take,
    example_inputs,
    inputs_from_entries,
    inputs_from_items,
    names_entry,
    words,
)

LABEL_KEYS = ('labels', 'label', 'mask', 'target')
# A mask may also say which tokens or rows are valid, and a target may be one of several.
VAGUE_LABEL_KEYS = ('mask', 'target')
LABEL_WORDS = ('class', 'cls', 'category', 'label', 'labels', 'target', 'targets', 'y', 'gt')
# The last words of names of integers that are no labels, but in class_id.
NO_LABEL_WORDS = (*NO_INPUT_WORDS, 'length', 'lengths')
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
) -> tuple[Inputs, Array]:
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
        labels = _check_are_several(batch[key])
        entries = _without(batch, key)
        return inputs_from_entries(entries, signature, 'b', f'b[{key!r}]'), labels
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        _raise_no_batch(batch, _batch_remedy(batch, signature))
    inputs, labels = batch
    _check_are_several(labels)
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
    if len(candidates) == 1 and candidates[0] in VAGUE_LABEL_KEYS:
        candidates += _rivals(batch, candidates[0], signature)
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        problem = f'{" and ".join(map(str, candidates))} of a batch may each be the labels'
    else:
        problem = f'none of {", ".join(map(str, batch))} is known to be the labels'
        candidates = _unnamed_candidates(batch, signature) or label_keys or list(batch)[-1:]
    readings = []
    for key in candidates:
        is_needed = names_entry(signature, key) and _is_required(key, signature)
        entries = batch if is_needed else _inputs_beside(batch, key, candidates)
        example = example_inputs(entries, signature, 'b')
        readings.append(f'unpack=lambda b: ({example}, b[{key!r}])')
    raise UserError(f'{problem}: say which is, as {" or ".join(readings)}')


def _inputs_beside(
    batch: Mapping[Any, Any], label_key: Hashable, candidates: list[Hashable]
) -> dict[Any, Any]:
    """Return the entries that may be inputs if one is the labels, those that are sure first."""
    entries = _without(batch, *candidates)
    for key in candidates:
        if key != label_key and not set(words(key)) & set(LABEL_WORDS):
            entries[key] = batch[key]
    return entries or _without(batch, label_key)


def _rivals(batch: Mapping[Any, Any], label_key: str, signature: Signature) -> list[Hashable]:
    """Return the keys of entries that the model does not get and that may be the labels as well.

    It prevents a wrong number: of ``x``, ``y`` and ``mask``, the mask of valid rows is no label.

    Args:
        batch: The batch.
        label_key: The key of an entry that may be the labels.
        signature: The signature of the model.
    """
    entries = _without(batch, label_key)
    by_parameter = arrange(entries, signature).by_parameter
    # A model may leave alone an entry that it gets by ``**kwargs``.
    used_keys = [key for name, key in by_parameter.items() if name in signature.parameters]
    classes = _classes(batch[label_key])
    if classes is None:
        return []
    rivals = []
    for key, value in entries.items():
        values = None if key in used_keys or _is_known(key) else _classes(value)
        if values is not None and _are_labels_of_same_images(values, classes):
            rivals.append(key)
    return rivals


def _are_labels_of_same_images(values: Tensor, labels: Tensor) -> bool:
    """Return whether values may be labels where others are; a row of 0 and 1 may be several."""
    if values.shape[:1] != labels.shape[:1]:
        return False
    if values.squeeze().shape == labels.squeeze().shape:
        return True
    return values.ndim == 1 and labels.ndim == 2 and bool((labels.long() <= 1).all())


def _is_known(key: Hashable) -> bool:
    """Return whether an entry numbers or weighs images by its name."""
    return words(key)[-1] in NO_LABEL_WORDS and not set(words(key)) & set(LABEL_WORDS)


def _classes(value: Any) -> Tensor | None:
    """Return the classes that an entry may hold: integers, or floats 0 and 1; None of all else."""
    if not isinstance(value, (Tensor, np.ndarray, list)):
        return None
    try:
        values = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):  # Texts, and lists of unequal lengths.
        return None
    if not values.ndim or values.is_complex():
        return None
    if values.is_floating_point():
        ones = values == 1
        # Weights may all be 1.
        if ones.all() or not (ones | (values == 0)).all():
            return None
    return values


def _unnamed_candidates(batch: Mapping[Any, Any], signature: Signature) -> list[Hashable]:
    """Return the keys of entries without a name of labels that may be labels: classes, if any."""
    arrays = []
    for key, value in batch.items():
        is_input = names_entry(signature, key) or key in INPUT_KEYS or _is_known(key)
        if isinstance(value, (Tensor, np.ndarray)) and not is_input:
            arrays.append(key)
    return [key for key in arrays if _classes(batch[key]) is not None] or arrays[-1:]


def _is_input(key: str, signature: Signature) -> bool:
    """Return whether an entry that may be the labels is an input of the model."""
    if not names_entry(signature, key):
        return False
    return key == 'mask' or _is_required(key, signature)


def _is_required(key: Hashable, signature: Signature) -> bool:
    return signature.parameters[key].default is Parameter.empty


def _without(batch: Mapping[Any, Any], *left_out: Hashable) -> dict[Any, Any]:
    return {key: value for key, value in batch.items() if key not in left_out}


def _check_are_several(labels: Any) -> Array:
    """Return labels; refuse a single one.

    A model would fail for the input of one image, with an error of its own.
    """
    if not getattr(labels, 'ndim', not isinstance(labels, (int, float))):
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


def _batch_remedy(batch: Any, signature: Signature) -> str:
    """Return what to do about a batch that is neither a pair nor a dict."""
    if isinstance(batch, (tuple, list)) and len(batch) > 2:
        if all(isinstance(item, (Mapping, tuple, list)) for item in batch):
            return 'if these are samples, collate them, as a DataLoader does by default'
        before_last = ', '.join(f'b[{index}]' for index in range(len(batch) - 1))
        ending = ''
        others = [0]
        for index, item in enumerate(batch[2:], start=2):
            if isinstance(item, (Tensor, np.ndarray)):
                others.append(index)
        if len(others) == 1 or not can_take(signature, *others):
            after_second = 'b[0]'
        else:
            after_second = f'({", ".join(f"b[{index}]" for index in others)})'
            ending = ' (leave out what is no input)'
        return (
            f'say which is the labels, unpack=lambda b: (({before_last}), b[{len(batch) - 1}]) if '
            f'the last is, or unpack=lambda b: ({after_second}, b[1]) if the second is{ending}'
        )
    if isinstance(batch, (Tensor, np.ndarray)):
        return 'add the labels; one batch alone goes in a list, as [(inputs, labels)]'
    if isinstance(batch, (tuple, list, str)):
        return 'add the labels'
    return (
        'say what its inputs and its labels are, as unpack=lambda b: (b.x, b.y), or '
        'unpack=lambda b: (b, b.y) for a model that takes the whole object'
    )
