"""Predictions and labels of an evaluated data sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

import numpy as np
import torch
from torch import Tensor

from mmcalib.checks import (
    SUM_TOLERANCE,
    at_least_single,
    check_finite,
    check_labels,
    check_probabilities,
)
from mmcalib.samples.boundary_distance import distance_ranges
from mmcalib.samples.fields import (
    Sample,
    check_binary,
    check_explained,
    check_size,
    class_label,
    class_probabilities,
    class_scores,
    label_maps,
    tensor_of,
)
from mmcalib.samples.objects import object_ious, objects_of_logits
from mmcalib.samples.predictions import (
    Prediction,
    of_logits,
    of_probabilities,
    places_of,
    smallest_probability,
)

LABELS_HINT = "check the dataset's classes, or the metric's ignore_index"
OOD_LABELS_HINT = f'{LABELS_HINT} or ood_index'


def read_prediction(
    sample: Sample,
    *,
    ignore_index: int,
    name: str,
    wanted: Set[str] = frozenset(),
    floor: float = 0.0,
    region: Callable[[Tensor], Tensor] | None = None,
    background: int | None = None,
) -> Prediction:
    """Read an evaluated data sample of mmpretrain or mmseg.

    A binary head of mmseg leaves only the sigmoid of its logit, in which float32 has no value
    between 1 - 2^-24 and 1. So the other class's probability, where it comes out as 0, counts as
    half of what could be told from it: 17 nats. The same holds for probabilities that float16 has
    rounded to 0 or 1.

    Args:
        sample: mmpretrain's, with ``pred_score`` ``(K,)`` softmax probabilities and ``gt_label``
            ``(1,)``; or mmseg's, with ``seg_logits`` ``(K, H, W)``, raw for K > 1 and already
            sigmoid for K = 1, ``pred_sem_seg`` and ``gt_sem_seg`` ``(1, H, W)``.
        ignore_index: Label of the pixels to leave out. A classifier's labels are all valid.
        name: What errors call the sample.
        wanted: Some of :data:`~mmcalib.samples.predictions.WANTED`.
        floor: Of the listed probabilities of all classes.
        region: Given the ``(H, W)`` labels, returns a mask of the pixels to keep.
        background: The class that is no object.

    Raises:
        ValueError: For NaN or infinite predictions, scores that are not probabilities, labels out
            of range, sizes that differ, logits that the prediction did not come from (test-time
            augmentation), a region or distance of a sample that has no pixels, or a sample that
            lacks one of the keys above. Each names the sample.
    """
    if 'seg_logits' in sample:
        found = _read_segmentation(sample, ignore_index, name, wanted, floor, region)
        if 'objects' in wanted:
            found = found._replace(objects=_read_objects(sample, ignore_index, background))
        return found
    smallest = smallest_probability(class_scores(sample, name).dtype)
    if region is not None or not {'distance', 'objects'}.isdisjoint(wanted):
        raise ValueError(
            f"{name} comes from a classifier: protocols other than 'pooled', distances from the "
            'boundary and objects require a segmentor'
        )
    probs, label = class_probabilities(sample, name), class_label(sample, name).cpu()
    check_labels(label, len(probs), name=name, hint=LABELS_HINT)
    return of_probabilities(probs, label, wanted=wanted, floor=floor, smallest=smallest)


def probabilities_of_batch(samples: Sequence[Sample]) -> tuple[Tensor, Tensor, float] | None:
    """Read a batch of a classifier's samples at once, which takes a hundredth of one by one.

    Returns:
        Probabilities ``(K, M)``, labels ``(M,)``, and what a probability of 0 counts as; None of a
        batch that is a segmentor's, or has a sample amiss: :func:`read_prediction` says which.
    """
    if any('seg_logits' in sample for sample in samples):
        return None
    scores = [tensor_of(sample, 'pred_score') for sample in samples]
    labels = [tensor_of(sample, 'gt_label') for sample in samples]
    if not samples or any(x is None for x in (*scores, *labels)):
        return None
    alike = {
        (score.shape, score.dtype, score.device, label.dtype, label.device)
        for score, label in zip(scores, labels, strict=True)
    }
    if len(alike) > 1 or scores[0].ndim != 1 or any(label.numel() != 1 for label in labels):
        return None
    probs = at_least_single(torch.stack(scores).detach()).cpu().T
    label = torch.stack([label.reshape(()) for label in labels]).cpu().long()
    try:
        check_finite(probs, 'a batch')
        check_probabilities(probs, 'a batch')
        check_labels(label, len(probs))
    except ValueError:
        return None
    return probs.clamp(max=1), label, smallest_probability(scores[0].dtype)


def read_labels(sample: Sample, *, ignore_index: int, name: str) -> tuple[Tensor, Tensor]:
    """Return the predicted and the true labels of an mmseg sample's valid pixels, both ``(M,)``.

    Raises:
        ValueError: If the sample has none, or they differ in size.
    """
    predicted, label = (plane.cpu().long() for plane in label_maps(sample, name))
    check_size(name, 'pred_sem_seg', tuple(predicted.shape), label)
    valid = label != ignore_index
    return predicted[valid], label[valid]


def read_image(sample: Sample, *, ignore_index: int, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return an evaluated data sample's probabilities, predicted and true classes, on the CPU.

    Returns:
        ``(K, H, W)``, ``(H, W)`` and ``(H, W)`` of a segmentor, with K = 2 for a binary head;
        ``(K, 1)``, ``(1,)`` and ``(1,)`` of a classifier.

    Raises:
        ValueError: For what :func:`read_prediction` refuses.
    """
    if 'seg_logits' not in sample:
        probs, label = class_probabilities(sample, name), class_label(sample, name).cpu()
        check_labels(label, len(probs), name=name, hint=LABELS_HINT)
        return probs, probs.argmax(dim=0), label
    logits = at_least_single(tensor_of(sample, 'seg_logits').detach())
    check_finite(logits, f'seg_logits of {name}')
    predicted, label = (plane.cpu().long() for plane in label_maps(sample, name))
    check_size(name, 'seg_logits', tuple(logits.shape[1:]), label)
    valid = label[label != ignore_index]
    check_labels(valid, max(len(logits), 2), name=name, hint=LABELS_HINT)
    if len(logits) == 1:
        check_binary(logits.flatten(), name)
        return torch.cat([1 - logits, logits]).cpu(), predicted, label
    own = logits.gather(0, predicted.to(logits.device)[None])[0]
    check_explained(int((own < logits.amax(dim=0)).sum()), name)
    return logits.softmax(dim=0).cpu(), predicted, label


def read_logits(
    sample: Sample, logits: Tensor, *, ignore_index: int, name: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the valid predictions of an evaluated data sample and the logits they came from.

    Args:
        sample: As for :func:`read_prediction`.
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
        maps = label_maps(sample, name)
        return _valid_logits(logits, *maps, ignore_index, name, LABELS_HINT)
    scores = class_scores(sample, name).to(logits)
    label = class_label(sample, name).to(logits.device)
    if scores.shape != logits.shape or (scores - logits.softmax(0)).abs().max() > SUM_TOLERANCE:
        raise ValueError(
            f"the scores of {name} are not the softmax of its head's output: with another "
            'activation, or logits that change after the head, no layer can take a scaling'
        )
    check_labels(label, len(logits), name=name, hint=LABELS_HINT)
    return logits[None], label, logits.argmax(0, keepdim=True)


def read_ood(
    sample: Sample, *, ood_index: int | None, ignore_index: int, name: str
) -> tuple[Tensor, bool, Tensor]:
    """Return an evaluated data sample's valid predictions, and what is seen in each.

    Args:
        sample: As for :func:`read_prediction`; a classifier's may also have its ``logits``.
        ood_index: Label of what is out of distribution. So are a classifier's negative labels.
        ignore_index: Label of the pixels to leave out.
        name: What errors call the sample.

    Returns:
        Logits or probabilities ``(K, M)``, whether they are logits, and ``(M,)`` int64: 0 in
        distribution, 1 of the first OOD set (label -1, or `ood_index`), 2 of the second (label -2),
        and so on.

    Raises:
        ValueError: For what :func:`read_prediction` and :func:`read_logits` refuse, or pixels
            without an `ood_index`.
    """
    if 'seg_logits' in sample:
        return _read_ood_pixels(sample, ood_index, ignore_index, name)
    probs, label = class_probabilities(sample, name), class_label(sample, name).cpu()
    number = 1 if label.item() == ood_index else max(-label.item(), 0)
    kind = torch.tensor([number])
    if not number:
        check_labels(label, len(probs), name=name, hint=OOD_LABELS_HINT)
    logits = tensor_of(sample, 'logits')
    if logits is None:
        return probs, False, kind
    known = {
        'pred_score': class_scores(sample, name),
        'gt_label': torch.where(kind > 0, 0, label),
    }
    logits, _, _ = read_logits(known, logits, ignore_index=ignore_index, name=name)
    return logits.T, True, kind


def _valid_logits(
    logits: Tensor, predicted: Tensor, label: Tensor, ignore_index: int, name: str, hint: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits ``(M, K)``, true and predicted classes ``(M,)`` of the pixels that count."""
    predicted, label = (plane.to(logits.device).long() for plane in (predicted, label))
    check_size(name, 'seg_logits', tuple(logits.shape[1:]), label)
    kept = (label != ignore_index).flatten().nonzero().squeeze(1)
    label, predicted = label.flatten()[kept], predicted.flatten()[kept]
    check_labels(label, max(len(logits), 2), name=name, hint=hint)
    return logits.flatten(1).index_select(1, kept).T, label, predicted


def _read_ood_pixels(
    sample: Sample, ood_index: int | None, ignore_index: int, name: str
) -> tuple[Tensor, bool, Tensor]:
    if ood_index is None:
        raise ValueError(
            f'{name} is a segmentation: give ood_index, the label of the pixels that are out of '
            'distribution'
        )
    logits = at_least_single(tensor_of(sample, 'seg_logits').detach())
    check_finite(logits, f'seg_logits of {name}')
    predicted, label = label_maps(sample, name)
    is_ood = label == ood_index
    known = torch.where(is_ood, int(ignore_index == 0), label)  # any label of a class will do
    kind = is_ood[label != ignore_index].long().cpu()
    rows, _, predicted = _valid_logits(
        logits, predicted, known, ignore_index, name, OOD_LABELS_HINT
    )
    if len(logits) == 1:
        check_binary(rows[:, 0], name)
        return torch.stack([1 - rows[:, 0], rows[:, 0]]), False, kind
    if len(rows):
        own = rows.gather(1, predicted[:, None])[:, 0]
        check_explained(int((own < rows.amax(dim=1)).sum()), name)
    return rows.T, True, kind


def _read_objects(sample: Sample, ignore_index: int, background: int | None) -> Tensor:
    """Return the objects of a sample that :func:`_read_segmentation` has read, ``(O, 5)``."""
    logits = at_least_single(tensor_of(sample, 'seg_logits').detach())
    predicted, label = (plane.to(logits.device).long() for plane in label_maps(sample, ''))
    found = objects_of_logits(logits, predicted, background=background)
    ious = object_ious(found, label.cpu().numpy(), ignore_index=ignore_index)
    columns = found.label, found.pixels, found.confidence, found.expected_iou, ious
    return torch.from_numpy(np.stack(columns, axis=1).astype(np.float64))


def _read_segmentation(
    sample: Sample,
    ignore_index: int,
    name: str,
    wanted: Set[str],
    floor: float,
    region: Callable[[Tensor], Tensor] | None,
) -> Prediction:
    raw = tensor_of(sample, 'seg_logits').detach()
    logits = at_least_single(raw)
    predicted, label = (x.to(logits.device) for x in label_maps(sample, name))
    check_size(name, 'seg_logits', tuple(logits.shape[1:]), label)
    valid = label != ignore_index
    if region is not None:
        valid &= region(label)
    distance = None
    if 'distance' in wanted:
        distance = distance_ranges(label).flatten().index_select(0, places_of(valid.flatten()))
        distance = distance.cpu()
    label = torch.where(valid, label, 0).long().flatten()
    check_labels(label, max(len(logits), 2), name=name, hint=LABELS_HINT)
    logits, predicted, valid = logits.flatten(1), predicted.long().flatten(), valid.flatten()
    if len(logits) == 1:
        check_finite(logits, f'seg_logits of {name}')
        check_binary(logits[0], name)
        found = _of_binary_head(logits[0], predicted, label, valid, raw.dtype, wanted, floor)
        return found._replace(distance=distance)
    reading = of_logits(logits, predicted, label, valid, wanted=wanted, floor=floor)
    if not reading.finite:
        check_finite(logits, f'seg_logits of {name}')
    check_explained(reading.unexplained, name)
    return reading.prediction._replace(distance=distance)


def _of_binary_head(
    prob: Tensor,
    predicted: Tensor,
    label: Tensor,
    valid: Tensor,
    dtype: torch.dtype,
    wanted: Set[str],
    floor: float,
) -> Prediction:
    """Return the predictions of a head whose one "logit" is the probability of class 1."""
    conf = torch.where(predicted == 1, prob, 1 - prob)
    kept, left_out = valid.nonzero().squeeze(1), conf[~valid].cpu()
    prob, predicted, label = (x.index_select(0, kept) for x in (prob, predicted, label))
    # What is nearest to 1 stands for all within a quarter of its type's resolution.
    smallest = torch.tensor([torch.finfo(dtype).eps / 4, smallest_probability(dtype)])
    found = of_probabilities(
        torch.stack([1 - prob, prob]),
        label,
        predicted=predicted,
        wanted=wanted,
        floor=floor,
        smallest=smallest,
    )
    return found._replace(left_out=left_out)
