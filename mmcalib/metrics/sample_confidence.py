"""Predicted classes and their confidences out of a data sample, as arrays to be drawn or stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from mmcalib.argument_checks import at_least_single
from mmcalib.metrics.predictions import check_probabilities
from mmcalib.metrics.sample_fields import check_finite, plane

UNLABELLED_PIECE = 1 << 22  # logits that are worked on together


class PredictionMap(NamedTuple):
    """The prediction of one segmented image, as arrays of its pixels on the CPU.

    Attributes:
        conf: ``(H, W)`` float32 probability of the predicted class.
        predicted: ``(H, W)`` int64.
        label: ``(H, W)`` int64, with the ignored ones as they are.
    """

    conf: Tensor
    predicted: Tensor
    label: Tensor


class UnlabelledPrediction(NamedTuple):
    """What a model says of an image, on the CPU.

    Attributes:
        conf: Probability of the predicted class: ``(H, W)`` float32 of a segmentor, one value of a
            classifier.
        predicted: Its class, int64, of the same shape.
        probs: ``(K,)`` float32 probabilities of a classifier, None of a segmentor.
    """

    conf: Tensor
    predicted: Tensor
    probs: Tensor | None = None


def read_unlabelled(sample: Mapping, *, name: str) -> UnlabelledPrediction:
    """Read a predicted data sample of mmpretrain or mmseg, with labels or without.

    Args:
        sample: As for :func:`read_prediction`, whose labels are not needed.
        name: What errors call it.

    Raises:
        ValueError: For NaN or infinite predictions, scores that are not probabilities of one class
            each, or a sample that has neither kind.
    """
    if 'seg_logits' in sample:
        logits = sample['seg_logits']['data'].detach()
        check_finite(at_least_single(logits), name, 'seg_logits')
        predicted = plane(sample['pred_sem_seg']).long()
        rows = max(1, UNLABELLED_PIECE // (len(logits) * logits.shape[-1]))
        parts = zip(logits.split(rows, dim=1), predicted.split(rows), strict=True)
        conf = torch.cat([_map_confidence(*part).cpu() for part in parts])
        return UnlabelledPrediction(conf, predicted.cpu())
    if 'pred_score' not in sample:
        raise ValueError(
            f'{name} was predicted without pred_score (mmpretrain) or seg_logits (mmseg), so its '
            f'confidence is unknown; it has {sorted(sample)}'
        )
    scores = sample['pred_score'].detach().float().cpu()
    check_finite(scores, name, 'pred_score')
    check_probabilities(scores[None], f'pred_score of {name}')
    conf, predicted = scores.clamp(max=1).max(dim=0)
    return UnlabelledPrediction(conf, predicted, scores)


def read_map(sample: Mapping, *, step: int = 1) -> PredictionMap:
    """Read every `step`-th pixel of every `step`-th line of an evaluated data sample of mmseg.

    Nothing is computed, and nothing new is kept, on the sample's own device.

    Args:
        sample: What :func:`read_prediction` has read without complaint.
        step: At least 1.
    """
    pixels = slice(None, None, step), slice(None, None, step)
    logits = torch.stack([plane.detach().cpu()[pixels] for plane in sample['seg_logits']['data']])
    predicted = plane(sample['pred_sem_seg']).cpu()[pixels].long()
    label = plane(sample['gt_sem_seg']).cpu()[pixels].long()
    return PredictionMap(_map_confidence(logits, predicted), predicted, label)


def _map_confidence(logits: Tensor, predicted: Tensor) -> Tensor:
    """Return the probability of the predicted class of ``(K, …)`` logits, in float32."""
    logits = logits.float()
    if len(logits) == 1:  # a binary head, see read_prediction
        return torch.where(predicted == 1, logits[0], 1 - logits[0])
    return 1 / (logits - logits.amax(dim=0)).exp().sum(dim=0)
