"""Labels beside scores: their axes, the classes that they may have, and remedies for misfits."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.options import check_ignore_index
from mmcalib.predictions.arrays import valid_labels
from mmcalib.tensors import SUM_TOLERANCE, check_labels

ARRAYS_REMEDY = (
    'give labels[..., None], with logits[..., None] if it is the second one, or with '
    'logits.movedim(-1, 1)[..., None] if it is the last'
)
ONE_HOT = 'the labels are one-hot: give labels.argmax({axis}), a class of each'


def labelled_rows(
    name: str, values: Tensor, labels: Tensor, ignore_index: int | None
) -> tuple[Tensor, Tensor]:
    """Return the rows ``(M, K)`` and the labels ``(M,)`` of the valid predictions.

    Args:
        name: The name of the values in errors.
        values: ``(N, K)`` or ``(N, K, *)``; ``(N,)`` or K = 1 where there are two classes.
        labels: ``(N,)`` or ``(N, *)`` int64.
        ignore_index: The label of predictions that are not valid; None if all are.

    Raises:
        ValueError: If shapes do not fit, or labels are out of range.
    """
    labels = labels_of_scores(name, values, labels, ignore_index).flatten()
    scores = values[:, None] if values.ndim == 1 else values
    rows = scores.movedim(1, -1).flatten(0, -2)
    valid = valid_labels(labels, ignore_index)
    if not valid.all():
        rows = rows[valid]
        labels = labels[valid]
    return rows, labels


def labels_of_scores(name: str, values: Tensor, labels: Tensor, ignore_index: int | None) -> Tensor:
    """Return labels ``(N,)`` or ``(N, *)`` that fit the values.

    Args:
        name: The name of the values in errors.
        values: ``(N, K)`` or ``(N, K, *)``; ``(N,)`` or K = 1 where there are two classes.
        labels: ``(N,)`` or ``(N, *)`` int64; an axis of one class is left out.
        ignore_index: The label of predictions that are not valid; None if all are.

    Raises:
        ValueError: If shapes do not fit, or labels are out of range.
    """
    scores = values[:, None] if values.ndim == 1 else values
    labels = without_class_axis(scores, labels)
    if scores.ndim < 2 or not scores.shape[1] or labels.shape != label_shape(scores):
        message = (
            f'{name} must be (N, K) with labels (N,), or (N, K, H, W) with labels (N, H, W); got '
            f'{tuple(values.shape)} and {tuple(labels.shape)}'
        )
        remedy = misfit_remedy(scores, labels, name)
        raise ValueError(f'{message}; {remedy}' if remedy else message)
    if ignore_index is not None:
        check_ignore_index(ignore_index)
    checked = labels.flatten()
    valid = valid_labels(checked, ignore_index)
    if not valid.all():
        checked = checked[valid]
    check_class_labels(checked, max(scores.shape[1], 2), ignore_index)
    return labels


def check_no_shares(labels: Tensor) -> None:
    """Raise a UserError for shares ``(N, K)`` of classes in place of labels, as of votes."""
    if labels.ndim != 2 or labels.shape[1] < 2 or not labels.is_floating_point():
        return
    has_fractions = (labels != labels.round()).any()
    if not has_fractions or labels.min() < 0:
        return
    if ((labels.double().sum(dim=1) - 1).abs() > SUM_TOLERANCE).any():
        return
    num_classes = labels.shape[1]
    raise UserError(
        f'labels {tuple(labels.shape)} are shares of {num_classes} classes, as of votes: give each '
        'row once for each of its votes. With votes = (V * shares).round().long() of V voters and '
        'i = torch.arange(votes.numel()).repeat_interleave(votes.flatten()), these are the rows '
        f'i // {num_classes} with labels i % {num_classes}, and groups=i // {num_classes}'
    )


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
    """Return the shape ``(N, *)`` of the labels of scores ``(N, K, *)``."""
    return scores.shape[:1] + scores.shape[2:]


def without_class_axis(scores: Tensor, labels: Tensor) -> Tensor:
    """Return labels ``(N, *)`` for scores ``(N, K, *)``, without a class axis of size 1.

    So labels of one column ``(N, 1)``, and masks ``(N, 1, H, W)`` or ``(N, H, W, 1)``, are read.
    """
    if labels.ndim == scores.ndim > 1:
        for axis in (1, labels.ndim - 1):
            if labels.shape[axis] == 1:
                return labels.squeeze(axis)
    return labels


def axes_look_alike(scores: Tensor) -> bool:
    """Return whether the class axis of ``(N, K, *)`` has the size of all others, as in (N, K, K).

    Then no shape tells an axis of classes at the end from one in second place.
    """
    return scores.ndim > 2 and scores.shape[1] > 1 and len(set(scores.shape[1:])) == 1


def check_class_axis(logits: Tensor, *, remedy: str = ARRAYS_REMEDY) -> None:
    """Raise a UserError for maps of which no shape tells which axis has the classes.

    It prevents a wrong number: logits (N, L, K) with L = K would be read with swapped axes.

    Args:
        logits: ``(N, K)`` or ``(N, K, *)``.
        remedy: The end of the error; by default for arrays of a user.
    """
    if axes_look_alike(logits):
        raise UserError(
            f'nobody knows which axis of logits {tuple(logits.shape)} has the classes: {remedy}'
        )


def is_one_hot(labels: Tensor, axis: int = 1) -> bool:
    """Return whether labels are 1 at one index of an axis, and 0 at all others."""
    if not labels.numel() or labels.shape[axis] < 2:
        return False
    is_binary = ((labels == 0) | (labels == 1)).all()
    return bool(is_binary and (labels.sum(dim=axis) == 1).all())


def misfit_remedy(scores: Tensor, labels: Tensor, name: str) -> str:
    """Return what to do about labels that do not fit scores ``(N, K, *)``, '' if nobody knows.

    Args:
        scores: The scores.
        labels: The labels.
        name: The name of the scores in the error.
    """
    if labels.ndim and len(labels) != len(scores):
        fits_transposed = labels.shape == scores.shape[1:]
        if fits_transposed and labels.ndim > 1:
            return f'a map alone is a batch of one: give {name}[None] and labels[None]'
        if fits_transposed and len(labels) > len(scores):  # There are mostly few classes.
            return f'each row is one prediction: give {name}.T'
        return (
            f'there are {len(labels):,} labels for {len(scores):,} predictions: give one for each'
        )
    are_rows = labels.ndim == scores.ndim == 2
    if are_rows and labels.shape[1] != scores.shape[1] and not is_one_hot(labels):
        return (
            f'each row has {labels.shape[1]} labels for {scores.shape[1]} {name}: give one label, '
            'of 0 or 1, for each'
        )
    if labels.ndim == scores.ndim > 1 and ((labels == 0) | (labels == 1)).all():
        last_axis = labels.ndim - 1
        has_classes_last = last_axis > 1 and labels.shape[:last_axis] == label_shape(scores)
        if has_classes_last and is_one_hot(labels, last_axis):
            return ONE_HOT.format(axis=last_axis)
        if is_one_hot(labels):
            remedy = ONE_HOT.format(axis=1)
            if labels.shape[1] != scores.shape[1]:
                remedy += f', where {labels.shape[1]} classes are meant, not {scores.shape[1]}'
            return remedy
        remedy = (
            'a prediction has labels of several classes, which a softmax cannot have: give one '
            f'class at a time, as {name}[:, k:k+1] of a sigmoid with labels[:, k]'
        )
        if scores.ndim > 2 and labels.shape == scores.shape:
            remedy = f'if they are maps of one class, give {name}[:, None]; else {remedy}'
        return remedy
    if scores.ndim > 2 and labels.shape == scores.shape[:-1]:
        return 'the classes are the second axis, so move the last one there, as by movedim(-1, 1)'
    return ''
