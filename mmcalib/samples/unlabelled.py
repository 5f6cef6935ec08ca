"""Predicted classes and their confidences out of a data sample, as arrays to be drawn or stored."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mmcalib.checks import at_least_single, check_finite
from mmcalib.samples import reading
from mmcalib.samples.objects import Objects, objects_of_logits
from mmcalib.samples.reading import Sample, tensor_of


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
    """A model's prediction for an image, on the CPU.

    Attributes:
        conf: Probability of the predicted class: ``(H, W)`` float32 of a segmentor, one value of a
            classifier.
        predicted: Its class, int64, of the same shape.
        probs: ``(K,)`` float32 probabilities of a classifier, None of a segmentor.
        objects: Of a segmentor, None of a classifier.
    """

    conf: Tensor
    predicted: Tensor
    probs: Tensor | None = None
    objects: Objects | None = None


def read_unlabelled(
    sample: Sample, *, name: str, background: int | None = None
) -> UnlabelledPrediction:
    """Read a predicted data sample of mmpretrain or mmseg, with labels or without.

    Args:
        sample: As for :func:`read_prediction`, whose labels are not needed.
        name: What errors call it.
        background: The class that is no object.

    Raises:
        ValueError: For NaN or infinite predictions, scores that are not probabilities of one class
            each, or a sample that has neither kind.
    """
    if 'seg_logits' in sample:
        logits = at_least_single(tensor_of(sample, 'seg_logits').detach())
        check_finite(logits, f'seg_logits of {name}')
        predicted = reading.predicted_map(sample, name).to(logits.device).long()
        conf = _map_confidence(logits, predicted).cpu()
        objects = objects_of_logits(logits, predicted, background=background)
        return UnlabelledPrediction(conf, predicted.cpu(), objects=objects)
    probs = reading.class_probabilities(sample, name)[:, 0].float()
    return UnlabelledPrediction(*probs.max(dim=0), probs)


def read_map(sample: Sample, *, step: int = 1) -> PredictionMap:
    """Read every `step`-th pixel of every `step`-th line of an evaluated data sample of mmseg.

    Nothing is computed, and nothing new is kept, on the sample's own device.

    Args:
        sample: What :func:`read_prediction` has read without complaint.
        step: At least 1.
    """
    pixels = slice(None, None, step), slice(None, None, step)
    planes = tensor_of(sample, 'seg_logits')
    logits = torch.stack([plane.detach().cpu()[pixels] for plane in planes])
    predicted, label = (
        plane.cpu()[pixels].long() for plane in reading.label_maps(sample, 'an image')
    )
    return PredictionMap(_map_confidence(logits, predicted), predicted, label)


def _map_confidence(logits: Tensor, predicted: Tensor) -> Tensor:
    """Return the probability of the predicted class of ``(K, …)`` logits, in float32."""
    logits = logits.float()
    if len(logits) == 1:  # a binary head, see read_prediction
        return torch.where(predicted == 1, logits[0], 1 - logits[0])
    return 1 / (logits - logits.amax(dim=0)).exp().sum(dim=0)
