"""What an evaluated data sample of a toolbox holds, read and checked in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from mmengine.structures import BaseDataElement
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.predictions.objects import Objects, map_probabilities, objects_of_logits
from mmcalib.tensors import (
    SUM_TOLERANCE,
    at_least_single,
    check_explained,
    check_finite,
    check_labels,
    check_probabilities,
    check_range,
)

Sample = Mapping | BaseDataElement
LABELS_HINT = "check the dataset's classes, or the metric's ignore_index or ood_index"
IGNORED = 255  # of a class that an image with several labels is not to be judged by
BACKGROUND = 'background'  # the name of the class that is no object
SEVERAL_LABELS = 'for a head that predicts each class by a sigmoid, set several_labels=True'


def tensor_of(sample: Sample, key: str) -> Tensor | None:
    """Return the tensor of a field, of pixels or not; None if there is none."""
    found = sample.get(key)
    if isinstance(found, Mapping):
        return found['data']
    return found.data if isinstance(found, BaseDataElement) else found


def name_of(sample: Sample, place: int | None = None) -> str:
    """Return the name that errors call a sample by: its file, else its place in the data set."""
    return str(sample.get('img_path') or f'sample {sample.get("sample_idx", place)}')


def background_of(classes: Sequence[str] | None) -> int | None:
    """Return the place of the class that is called background, None where none is."""
    names = [str(name).lower() for name in classes or ()]
    return names.index(BACKGROUND) if BACKGROUND in names else None


def map_size(sample: Sample) -> tuple[int, int] | None:
    """Return (H, W) of an evaluated data sample of mmseg, None for another toolbox's."""
    logits = tensor_of(sample, 'seg_logits')
    return None if logits is None else tuple(logits.shape[-2:])


def needed(sample: Sample, key: str, name: str, hint: str = '') -> Tensor:
    """Return the tensor of a field that must be there."""
    found = tensor_of(sample, key)
    if found is None:
        raise UserError(f'{name} has no {key}, only {sorted(sample.keys())}{hint}')
    return found.detach()


def class_scores(sample: Sample, name: str) -> Tensor:
    """Return the ``(K,)`` probabilities of a classifier's sample, unchecked."""
    hint = '; a classifier has pred_score (mmpretrain), a segmentor seg_logits (mmseg)'
    return needed(sample, 'pred_score', name, hint)


def class_probabilities(sample: Sample, name: str) -> Tensor:
    """Return the ``(K, 1)`` probabilities of a classifier's sample, on the CPU."""
    scores, name = at_least_single(class_scores(sample, name)).cpu(), f'pred_score of {name}'
    check_finite(scores, name)
    check_probabilities(scores[:, None], name)
    return scores.clamp(max=1)[:, None]


def class_label(sample: Sample, name: str, num_classes: int | None = None) -> Tensor:
    """Return the ``(1,)`` int64 label of a classifier's sample on the CPU, one of K if given."""
    label = needed(sample, 'gt_label', name)
    if label.numel() != 1:
        raise UserError(
            f'{name} needs one gt_label, the class of a softmax; got {label.tolist()}: '
            f'{SEVERAL_LABELS}'
        )
    label = label.long().reshape(1).cpu()
    if num_classes is not None:
        check_labels(label, num_classes, name=name, hint=LABELS_HINT)
    return label


def read_scores(sample: Sample, name: str) -> tuple[np.ndarray, int]:
    """Return the probabilities ``(K,)``, in their own type, and the label of a classified image.

    Raises:
        ValueError: For NaN, scores that are no probabilities, or labels out of range.
    """
    try:
        num_classes = len(class_probabilities(sample, name))
    except ValueError as error:
        if abs(class_scores(sample, name).double().sum() - 1) <= SUM_TOLERANCE:
            raise
        raise UserError(f'{error}; {SEVERAL_LABELS}') from None
    label = class_label(sample, name, num_classes)
    return class_scores(sample, name).cpu().numpy(), int(label)


def predicted_map(sample: Sample, name: str) -> Tensor:
    """Return the predicted label map of an mmseg sample, ``(H, W)`` int64."""
    data = needed(sample, 'pred_sem_seg', name)
    return data.reshape(data.shape[-2:]).long()  # mmseg stores a leading 1, or none


def check_mask(label: Tensor, name: str) -> None:
    """Refuse a label map that has not one class for each pixel, such as a mask in colours.

    It prevents lost hours: mmseg packs masks of any shape, and an operation later fails, which
    names no file.

    Args:
        label: As mmseg packs it, ``(1, H, W)`` or ``(H, W)``.
        name: The file of the mask.
    """
    height_and_width = label.shape[-2:]
    if label.ndim < 2 or label.numel() != height_and_width.numel():
        colours = ', one value for each colour' if label.shape[-1] in (3, 4) else ''
        raise UserError(
            f'the mask {name} has the shape {tuple(label.shape)}{colours}, where the number of one '
            'class is needed for each pixel: convert the colours to classes, 0, 1, … or 255, and '
            'save them as a grey PNG'
        )


def label_maps(sample: Sample, name: str, logits: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the predicted and the true label map of an mmseg sample, both ``(H, W)`` int64.

    They have the size of `logits`, and are where these are.
    """
    label = needed(sample, 'gt_sem_seg', name, ': its pipeline needs LoadAnnotations')
    check_mask(label, sample.get('seg_map_path') or name)
    label = label.reshape(label.shape[-2:]).long()
    predicted = predicted_map(sample, name)
    logits = predicted if logits is None else logits
    sizes = {tuple(found.shape[-2:]) for found in (predicted, logits)} - {tuple(label.shape)}
    if sizes:
        raise UserError(
            f'the prediction of {name} has the size {sizes.pop()}, gt_sem_seg '
            f'{tuple(label.shape)}: in the test pipeline LoadAnnotations must come after Resize, '
            'or AtInputSize after both'
        )
    return predicted.to(logits.device), label.to(logits.device)


def read_pixels(
    sample: Sample, *, ignore_index: int, name: str, ood_index: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits ``(K, H, W)`` of an mmseg sample, its predicted and its true classes.

    The logits of a binary head, K = 1, are the probability of class 1. Labels may be `ood_index`.

    Raises:
        ValueError: If sizes do not fit, labels are out of range, or a binary head's logits are no
            probabilities.
    """
    logits = needed(sample, 'seg_logits', name)
    predicted, label = label_maps(sample, name, logits)
    known = label != ignore_index
    if ood_index is not None:
        known &= label != ood_index
    # Filling takes a third of the time of selecting.
    check_labels(label.masked_fill(~known, 0), max(len(logits), 2), name=name, hint=LABELS_HINT)
    if len(logits) == 1:
        check_finite(logits, f'seg_logits of {name}')
        check_range(logits, f'seg_logits of {name}, of one class,')
    return logits, predicted, label


def read_image(sample: Sample, *, ignore_index: int, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return an evaluated data sample's probabilities, predicted and true classes, on the CPU.

    Returns:
        ``(K, H, W)``, ``(H, W)`` and ``(H, W)`` of a segmentor, with K = 2 for a binary head;
        ``(K, 1)``, ``(1,)`` and ``(1,)`` of a classifier.
    """
    if 'seg_logits' not in sample:
        probs = class_probabilities(sample, name)
        return probs, probs.argmax(dim=0), class_label(sample, name, len(probs))
    logits, predicted, label = read_pixels(sample, ignore_index=ignore_index, name=name)
    check_explained(logits, predicted, name)
    return map_probabilities(at_least_single(logits)).cpu(), predicted.cpu(), label.cpu()


def read_logits(
    sample: Sample, logits: Tensor, *, ignore_index: int, name: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the valid predictions of an evaluated data sample and the logits they came from.

    Args:
        sample: Of mmpretrain or mmseg.
        logits: What the model had before its softmax or sigmoid: ``(K,)`` of a classifier,
            ``(K, H, W)`` of a segmentor, at the size of its labels.
        ignore_index: Label of the pixels to leave out.
        name: What errors call the sample.

    Returns:
        Logits ``(M, K)``, true and predicted classes ``(M,)``, on the device of the logits.

    Raises:
        ValueError: If `logits` are not what the sample's scores came from, are NaN or infinite, or
            the sample has no or other labels.
    """
    logits = at_least_single(logits.detach())
    check_finite(logits, f'logits of {name}')
    if 'seg_logits' in sample:
        predicted, label = (plane.flatten() for plane in label_maps(sample, name, logits))
        kept = (label != ignore_index).nonzero().squeeze(1)
        label, predicted = label[kept], predicted[kept]
        check_labels(label, max(len(logits), 2), name=name, hint=LABELS_HINT)
        return logits.flatten(1).index_select(1, kept).T, label, predicted
    scores = class_scores(sample, name).to(logits)
    if scores.shape != logits.shape or (scores - logits.softmax(0)).abs().max() > SUM_TOLERANCE:
        raise UserError(
            f"the scores of {name} are not the softmax of its head's output: with another "
            'activation, or logits that change after the head, no layer can take a scaling'
        )
    label = class_label(sample, name, len(logits)).to(logits.device)
    return logits[None], label, logits.argmax(0, keepdim=True)


def read_ood(
    sample: Sample, *, ood_index: int | None, ignore_index: int, name: str
) -> tuple[Tensor, bool, Tensor]:
    """Return an evaluated data sample's valid predictions, and what is seen in each.

    Args:
        sample: Of mmpretrain or mmseg; a classifier's may also have its ``logits``.
        ood_index: Label of what is out of distribution. So are a classifier's negative labels.
        ignore_index: Label of the pixels to leave out.
        name: What errors call the sample.

    Returns:
        Logits or probabilities ``(K, M)``, whether they are logits, and ``(M,)`` int64: 0 in
        distribution, 1 of the first OOD set (label -1, or `ood_index`), 2 of the second (label -2),
        and so on.
    """
    if 'seg_logits' not in sample:
        probs, label = class_probabilities(sample, name), class_label(sample, name)
        unseen = (label < 0) | (label == (-1 if ood_index is None else ood_index))
        kind = torch.where(unseen, (-label).clamp(min=1), 0)
        check_labels(label[~unseen], len(probs), name=name, hint=LABELS_HINT)
        logits = tensor_of(sample, 'logits')
        if logits is None:
            return probs, False, kind
        known = {**sample, 'gt_label': torch.where(unseen, 0, label)}
        return read_logits(known, logits, ignore_index=ignore_index, name=name)[0].T, True, kind
    if ood_index is None:
        raise UserError(f'{name} is a segmentation: give ood_index, the label of OOD pixels')
    options = dict(ignore_index=ignore_index, ood_index=ood_index, name=name)
    logits, predicted, label = read_pixels(sample, **options)
    check_explained(logits, predicted, name)
    valid = label != ignore_index
    rows, kind = at_least_single(logits)[:, valid], (label == ood_index)[valid].long().cpu()
    return (torch.cat([1 - rows, rows]), False, kind) if len(rows) == 1 else (rows, True, kind)


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
        predicted = predicted_map(sample, name).to(logits.device)
        conf = _map_confidence(logits, predicted).cpu()
        objects = objects_of_logits(logits, predicted, background=background)
        return UnlabelledPrediction(conf, predicted.cpu(), objects=objects)
    probs = class_probabilities(sample, name)[:, 0].float()
    return UnlabelledPrediction(*probs.max(dim=0), probs)


def read_map(sample: Sample, *, step: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Read every `step`-th pixel of every `step`-th line of an evaluated data sample of mmseg.

    Nothing is computed, and nothing new is kept, on the sample's own device.

    Args:
        sample: What :func:`read_pixels` has read without complaint.
        step: At least 1.

    Returns:
        ``(H, W)`` float32 probabilities of the predicted classes, these, and the labels, int64.
    """
    pixels = slice(None, None, step), slice(None, None, step)
    planes = tensor_of(sample, 'seg_logits')
    logits = torch.stack([plane.detach().cpu()[pixels] for plane in planes])
    predicted, label = (plane.cpu()[pixels].long() for plane in label_maps(sample, 'an image'))
    return _map_confidence(logits, predicted), predicted, label


def _map_confidence(logits: Tensor, predicted: Tensor) -> Tensor:
    """Return the probability of the predicted class of ``(K, …)`` logits, in float32."""
    logits = logits.float()
    if len(logits) == 1:  # a binary head's probability
        return torch.where(predicted == 1, logits[0], 1 - logits[0])
    return 1 / (logits - logits.amax(dim=0)).exp().sum(dim=0)


def as_binary_map(sample: Mapping, name: str = 'a prediction') -> dict:
    """Return an mmpretrain sample of several labels as a binary mmseg sample of a pixel per class.

    So whatever reads binary segmentations reads it: a probability and a label of each class.

    Args:
        sample: With ``pred_score`` ``(K,)``, and ``gt_score`` ``(K,)`` of 0, 1 and -1 for what is
            not to be judged, or ``gt_label`` with the classes that are there.
        name: What errors call it.

    Raises:
        ValueError: If it lacks one of them, its scores are no probabilities, or its labels are out
            of range.
    """
    scores = at_least_single(class_scores(sample, name))
    check_finite(scores, f'pred_score of {name}')
    check_range(scores, f'pred_score of {name}')
    label = tensor_of(sample, 'gt_score')
    if label is None:
        present = needed(sample, 'gt_label', name).cpu().long()
        check_labels(present, len(scores), name=name, hint=LABELS_HINT)
        label = torch.zeros(len(scores), device='cpu').index_fill(0, present, 1)
    label = torch.where(label < 0, IGNORED, (label > 0.5).long()).to(scores.device)
    predicted = tensor_of(sample, 'pred_label')  # by the head's threshold, or its number of labels
    if predicted is None:
        predicted = (scores > 0.5).nonzero()[:, 0]
    maps = {
        'seg_logits': scores[None, None],
        'pred_sem_seg': torch.zeros_like(label).index_fill(0, predicted, 1)[None, None],
        'gt_sem_seg': label[None, None],
    }
    return {**sample, **{key: {'data': value} for key, value in maps.items()}}
