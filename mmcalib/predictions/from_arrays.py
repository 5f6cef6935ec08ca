"""Predictions in arrays that users give: probabilities with labels, or bare confidences."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.predictions.arrays import (
    Array,
    as_floats,
    as_integers,
    as_tensor,
    check_not_exchanged,
    is_masked,
    mark_masked,
    valid_labels,
)
from mmcalib.predictions.image_predictions import (
    ImagePredictions,
    predictions_from_confidences,
    predictions_from_probabilities,
)
from mmcalib.predictions.labels import (
    axes_look_alike,
    check_no_shares,
    label_shape,
    labelled_rows,
    labels_of_scores,
)
from mmcalib.tensors import SUM_TOLERANCE, at_least_single, check_probabilities, check_range


def read_arrays(
    probs: Array | None = None,
    labels: Array | None = None,
    conf: Array | None = None,
    correct: Array | None = None,
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
    has_probs_alone = conf is None and correct is None
    has_conf_alone = probs is None and labels is None
    if has_conf_alone and conf is not None and correct is not None:
        if ignore_index is not None:
            raise TypeError('ignore_index is a label: it goes with probs and labels, not with conf')
        return read_confidences(conf, correct)
    if not has_probs_alone or probs is None or labels is None:
        raise TypeError('give probs and labels, or conf=… and correct=…')
    return read_probabilities(probs, labels, ignore_index=ignore_index)


def read_probabilities(
    probs: Array, labels: Array, *, ignore_index: int | None
) -> ImagePredictions:
    """Return probabilities with labels as predictions, see :func:`read_arrays`."""
    probs, labels = mark_masked(probs, labels)
    probs_tensor = as_tensor('probs', probs)
    labels_tensor = as_tensor('labels', labels)
    check_not_exchanged('probs', probs_tensor, 'labels', labels_tensor)
    several_labels = have_several_labels(probs_tensor, labels_tensor)
    probs = as_floats('probs', probs)
    check_no_shares(labels_tensor)
    labels = as_integers('labels', labels)
    if several_labels:
        for index in range(probs.shape[1]):
            labelled_rows('probs', probs[:, index], labels[:, index], ignore_index)
        check_range(probs, 'probs')
    else:
        labels = labels_of_scores('probs', probs, labels, ignore_index)
        try:
            check_class_probabilities(probs, valid_labels(labels, ignore_index))
        except ValueError as error:
            if not axes_look_alike(probs):
                raise
            remedy = 'or, if the last axis has the classes, probs.movedim(-1, 1)'
            raise ValueError(f'{error}, {remedy}') from None
    return predictions_from_probabilities(
        probs, labels, ignore_index=ignore_index, several_labels=several_labels
    )


def check_class_probabilities(probs: Tensor, valid: Tensor) -> None:
    """Raise a ValueError for values that are no probabilities of classes.

    Args:
        probs: ``(N, K, *)``; ``(N,)`` or K = 1 for the probability of class 1 of two.
        valid: ``(N, *)`` mask of the predictions that are checked.
    """
    scores = probs[:, None] if probs.ndim == 1 else probs
    if not valid.all():
        scores = scores.movedim(1, -1)[valid]
    scores = at_least_single(scores)
    if scores.shape[1] == 1:
        check_range(scores, 'probs')
    else:
        check_probabilities(scores.movedim(1, 0), 'probs')


def have_several_labels(probs: Tensor, labels: Tensor) -> bool:
    """Return whether each row has several labels, whose probabilities do not sum to one."""
    if probs.ndim != 2 or probs.shape != labels.shape or probs.shape[1] < 2:
        return False
    is_whole = ~is_masked(labels).any(dim=1).to(probs.device)
    if is_whole.any():  # Rows with a masked number may have any number there.
        probs = probs[is_whole]
    return not ((probs.sum(dim=1) - 1).abs() < SUM_TOLERANCE).all()


def read_confidences(conf: Array, correct: Array) -> ImagePredictions:
    """Return bare confidences and whether they were right, of any one shape, as predictions."""
    conf, correct = mark_masked(conf, correct)
    correct = as_tensor('correct', correct).cpu()
    check_not_exchanged('conf', as_tensor('conf', conf), 'correct', correct)
    conf = as_floats('conf', conf)
    if correct.shape != conf.shape:
        remedy = ''
        if correct.shape == label_shape(conf):
            remedy = ': of probs and labels, give probs.max(1).values and probs.argmax(1) == labels'
        raise ValueError(
            'conf and correct must have one shape, got '
            f'{tuple(conf.shape)} and {tuple(correct.shape)}{remedy}'
        )
    valid = valid_labels(correct, None)
    outcomes = correct[valid]
    if outcomes.dtype != torch.bool and not ((outcomes == 0) | (outcomes == 1)).all():
        remedy = 'if they are labels, give predicted == labels'
        if outcomes.is_floating_point() and (outcomes != outcomes.round()).any():
            remedy = 'confidences come first'
        raise ValueError(
            f'correct must be booleans, got values such as {outcomes.unique()[:5].tolist()}: '
            f'{remedy}'
        )
    check_range(at_least_single(conf)[valid], 'conf')
    predictions = predictions_from_confidences(conf, correct == 1)
    return predictions.within(valid)
