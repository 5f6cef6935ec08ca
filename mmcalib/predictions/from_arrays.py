"""Predictions in arrays that users give: probabilities with labels, or bare confidences."""

from __future__ import annotations

import torch

from mmcalib.predictions.arrays import Array, as_integers, as_scores
from mmcalib.predictions.contract import Contract, check_no_shares, label_shape
from mmcalib.predictions.image_predictions import ImagePredictions, predictions_from_confidences
from mmcalib.tensors import at_least_single, check_range


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
    probs, labels, valid = as_scores('probs', probs, labels)
    check_no_shares(labels)
    contract = Contract('probs', ignore_index=ignore_index)
    return contract.read(probs.cpu(), as_integers('labels', labels), valid=valid)


def read_confidences(conf: Array, correct: Array) -> ImagePredictions:
    """Return bare confidences and whether they were right, of any one shape, as predictions."""
    conf, correct, valid = as_scores('conf', conf, correct, 'correct')
    conf = conf.cpu()
    correct = correct.cpu()
    if correct.shape != conf.shape:
        remedy = ''
        if correct.shape == label_shape(conf):
            remedy = ': of probs and labels, give probs.max(1).values and probs.argmax(1) == labels'
        raise ValueError(
            'conf and correct must have one shape, got '
            f'{tuple(conf.shape)} and {tuple(correct.shape)}{remedy}'
        )
    if valid is None:
        valid = torch.ones_like(correct, dtype=torch.bool)
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
