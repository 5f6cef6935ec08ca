"""Arrays that users give, as tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.options import check_ignore_index
from mmcalib.predictions.image_predictions import (
    ImagePredictions,
    predictions_from_confidences,
    predictions_from_probabilities,
)
from mmcalib.tensors import (
    SUM_TOLERANCE,
    at_least_single,
    check_labels,
    check_probabilities,
    check_range,
)

Array = np.ndarray | Tensor | Sequence
A = Array | None
# What stands for a label that numpy masks: no class, and no label that anyone would ignore.
MASKED = -(2**63)


def split_mask(values: Array) -> tuple[Array, np.ndarray | None]:
    """Return values with 0 where numpy masks them, and the mask; None where nothing is masked.

    An array of rows, or numbers, some of which are masked, would lose their masks as a list.
    """
    if isinstance(values, (list, tuple)) and any(isinstance(x, np.ma.MaskedArray) for x in values):
        mask = np.array([np.ma.getmaskarray(each) for each in values])
        plain = [0 if each is np.ma.masked else np.ma.filled(each, 0) for each in values]
        values = np.ma.array(np.array(plain), mask=mask)
    if not isinstance(values, np.ma.MaskedArray):
        return values, None
    mask = np.ma.getmaskarray(values)
    if not mask.any():
        return values.data, None
    return values.filled(0), mask


def mark_masked(values: Array, labels: Array) -> tuple[Array, Array]:
    """Return values and labels without masks of numpy; what is masked in either is `MASKED`.

    It prevents a wrong number: numpy drops the mask of what becomes a tensor.

    Args:
        values: ``(N, K)`` or ``(N, K, *)``; or of the labels' own shape.
        labels: ``(N,)`` or ``(N, *)``.
    """
    values, value_mask = split_mask(values)
    labels, mask = split_mask(labels)
    if value_mask is not None:
        if np.shape(labels) != value_mask.shape and value_mask.ndim > 1:
            value_mask = value_mask.any(axis=1)
        if np.size(labels) != value_mask.size:
            return values, labels  # The misfit of their shapes is an error later.
        value_mask = value_mask.reshape(np.shape(labels))
        mask = value_mask if mask is None else mask | value_mask
    if mask is None:
        return values, labels
    labels = tensor_of('labels', labels)
    labels = labels.double() if labels.is_floating_point() else labels.long()
    return values, labels.masked_fill(torch.from_numpy(mask).to(labels.device), MASKED)


def valid_labels(labels: Tensor, ignore_index: int | None) -> Tensor:
    """Return where labels count: they are neither the ignored one, nor masked by numpy."""
    valid = labels != MASKED
    return valid if ignore_index is None else valid & (labels != ignore_index)


def tensor_of(name: str, values: Array) -> Tensor:
    """Return numbers as a tensor without a gradient, on the device that they are on.

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
    scores = values[:, None] if values.ndim == 1 else values
    labels = without_class_axis(scores, labels)
    if scores.ndim < 2 or not scores.shape[1] or labels.shape != label_shape(scores):
        remedy = misfit_remedy(scores, labels, name)
        raise ValueError(
            f'{name} must be (N, K) with labels (N,), or (N, K, H, W) with labels (N, H, W); got '
            f'{tuple(values.shape)} and {tuple(labels.shape)}{remedy and f"; {remedy}"}'
        )
    if ignore_index is not None:
        check_ignore_index(ignore_index)
    labels = labels.flatten()
    rows = scores.movedim(1, -1).flatten(0, -2)
    valid = valid_labels(labels, ignore_index)
    if not valid.all():
        rows = rows[valid]
        labels = labels[valid]
    check_class_labels(labels, max(rows.shape[1], 2), ignore_index)
    return rows, labels


def check_class_labels(labels: Tensor, num_classes: int, ignore_index: int | None) -> None:
    """Raise a ValueError for labels outside [0, K), with what they are likely to be.

    Args:
        labels: Integers of any shape, without those that are ignored.
        num_classes: K.
        ignore_index: The label of what was left out; None if nothing was.
    """
    if not labels.numel():
        return
    lowest, highest = torch.stack(labels.aminmax()).tolist()
    if lowest >= 1 and highest == num_classes:
        remedy = f'Only if {highest} is to be left out, set ignore_index={highest}'
    elif ignore_index is not None:
        remedy = (
            f'They are not ignore_index={ignore_index}: give the label that is to be left out, '
            f'or number the classes from 0 to {num_classes - 1}'
        )
    else:
        remedy = (
            'To leave out a label such as 255, set ignore_index; otherwise number the classes '
            f'from 0 to {num_classes - 1}'
        )
    check_labels(labels, num_classes, name='labels', hint=remedy)


def label_shape(scores: Tensor) -> torch.Size:
    """Return the shape of the labels of scores ``(N, K, *)``, which is ``(N, *)``."""
    return scores.shape[:1] + scores.shape[2:]


def axes_look_alike(scores: Tensor) -> bool:
    """Return whether the class axis of ``(N, K, *)`` has the size of all others, as in (N, K, K).

    Then no shape tells an axis of classes at the end from one in second place.
    """
    return scores.ndim > 2 and scores.shape[1] > 1 and len(set(scores.shape[1:])) == 1


def check_class_axis(logits: Tensor) -> None:
    """Raise a UserError for maps of which no shape tells where the classes are.

    It prevents a wrong number: logits (N, L, K) with L = K would be read with swapped axes.
    """
    if axes_look_alike(logits):
        raise UserError(
            f'nobody knows which axis of logits {tuple(logits.shape)} has the classes: give '
            'labels[..., None], with logits[..., None] if it is the second one, or with '
            'logits.movedim(-1, 1)[..., None] if it is the last'
        )


def without_class_axis(scores: Tensor, labels: Tensor) -> Tensor:
    """Return labels ``(N, *)`` for scores ``(N, K, *)``, of which an axis of size 1 is dropped.

    So labels of one column ``(N, 1)``, and masks ``(N, 1, H, W)`` or ``(N, H, W, 1)``, are read.
    """
    if labels.ndim == scores.ndim > 1:
        for axis in (1, labels.ndim - 1):
            if labels.shape[axis] == 1:
                return labels.squeeze(axis)
    return labels


def is_one_hot(labels: Tensor, axis: int = 1) -> bool:
    """Return whether labels are 1 at one place along an axis, and 0 at all others."""
    if not labels.numel() or labels.shape[axis] < 2:
        return False
    is_binary = ((labels == 0) | (labels == 1)).all()
    return bool(is_binary and (labels.sum(dim=axis) == 1).all())


def misfit_remedy(scores: Tensor, labels: Tensor, name: str) -> str:
    """Return what to do about labels that do not fit scores ``(N, K, *)``, '' if nobody knows."""
    if labels.ndim == scores.ndim > 1 and ((labels == 0) | (labels == 1)).all():
        last = labels.ndim - 1
        if last > 1 and labels.shape[:last] == label_shape(scores) and is_one_hot(labels, last):
            return f'the labels are one-hot: give labels.argmax({last}), a class of each'
        if is_one_hot(labels):
            remedy = 'the labels are one-hot: give labels.argmax(1), a class of each'
            if labels.shape[1] != scores.shape[1]:
                remedy += f', where {labels.shape[1]} classes are meant, not {scores.shape[1]}'
            return remedy
        return (
            'a prediction has labels of several classes, which a softmax cannot have: give one '
            f'class at a time, as {name}[:, k:k+1] of a sigmoid with labels[:, k]'
        )
    if scores.ndim > 2 and labels.shape == scores.shape[:-1]:
        return 'the classes are the second axis, so move the last one there, as by movedim(-1, 1)'
    return ''


def _name(values: Tensor) -> str:
    return str(values.dtype).removeprefix('torch.')  # as numpy calls it too


def read_arrays(
    probs: A = None,
    labels: A = None,
    conf: A = None,
    correct: A = None,
    *,
    ignore_index: int | None = None,
) -> ImagePredictions:
    """Return the predictions in arrays: probabilities with labels, or bare confidences.

    Args:
        probs: ``(N, K)`` or ``(N, K, *)`` probabilities; ``(N,)`` or K = 1 for the probability of
            class 1 of two; ``(N, L)`` with labels ``(N, L)`` for L labels.
        labels: ``(N,)`` or ``(N, *)`` true classes.
        conf: Probabilities of the predicted classes, instead of `probs` and `labels`.
        correct: Whether they were right, of the same shape.
        ignore_index: The label of predictions that are not valid.

    Raises:
        TypeError: For other things than arrays of numbers, or an `ignore_index` without labels.
        ValueError: For values outside [0, 1], rows that do not sum to one, labels out of range, or
            arrays that do not fit each other.
    """
    given = [each is not None for each in (probs, labels, conf, correct)]
    if given == [False, False, True, True]:
        if ignore_index is not None:
            raise TypeError('ignore_index is a label: it goes with probs and labels, not with conf')
        return read_confidences(conf, correct)
    if given != [True, True, False, False]:
        raise TypeError('give probs and labels, or conf=… and correct=…')
    probs, labels = mark_masked(probs, labels)
    if have_several_labels(probs, labels):
        probs = floats_of('probs', probs)
        labels = integers_of('labels', labels)
        for index in range(probs.shape[1]):
            labelled_rows('probs', probs[:, index], labels[:, index], ignore_index)
        check_range(probs, 'probs')
        return predictions_from_probabilities(
            probs, labels, ignore_index=ignore_index, several_labels=True
        )
    probs = floats_of('probs', probs)
    labels = integers_of('labels', labels)
    rows, _ = labelled_rows('probs', probs, labels, ignore_index)
    rows = at_least_single(rows)
    labels = without_class_axis(probs, labels)
    if rows.shape[1] == 1:
        check_range(rows, 'probs')
    else:
        try:
            check_probabilities(rows.T, 'probs')
        except ValueError as error:
            if not axes_look_alike(probs):
                raise
            remedy = 'or, if the last axis has the classes, probs.movedim(-1, 1)'
            raise ValueError(f'{error}, {remedy}') from None
    return predictions_from_probabilities(probs, labels, ignore_index=ignore_index)


def have_several_labels(probs: Array, labels: Array) -> bool:
    """Return whether each row has several labels, whose probabilities do not sum to one."""
    probs = tensor_of('probs', probs)
    labels = tensor_of('labels', labels)
    if probs.ndim != 2 or probs.shape != labels.shape or probs.shape[1] < 2:
        return False
    is_whole = (labels != MASKED).all(dim=1).to(probs.device)
    if is_whole.any():  # The others may have any number where they are masked.
        probs = probs[is_whole]
    return not ((probs.sum(dim=1) - 1).abs() < SUM_TOLERANCE).all()


def read_confidences(conf: Array, correct: Array) -> ImagePredictions:
    """Return bare confidences and whether they were right, of any one shape, as predictions."""
    conf, correct = mark_masked(conf, correct)
    conf = floats_of('conf', conf)
    correct = tensor_of('correct', correct).cpu()
    if correct.shape != conf.shape:
        raise ValueError(
            'conf and correct must have one shape, got '
            f'{tuple(conf.shape)} and {tuple(correct.shape)}'
        )
    valid = valid_labels(correct, None)
    known = correct[valid]
    if known.dtype != torch.bool and not ((known == 0) | (known == 1)).all():
        raise ValueError(f'correct must be booleans, got values such as {known.unique()[:5]}')
    check_range(at_least_single(conf)[valid], 'conf')
    predictions = predictions_from_confidences(conf, correct == 1)
    return predictions.within(valid)
