"""Confidence and correctness out of a toolbox's data sample: the only file that knows its keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from mmcalib.argument_checks import at_least_single, check_labels
from mmcalib.metrics.boundary_distance import distance_ranges
from mmcalib.metrics.ood_scores import (
    NEED_LOGITS,
    SCORES,
    scores_of_logits,
    scores_of_probabilities,
)
from mmcalib.metrics.predictions import (
    SUM_TOLERANCE,
    Prediction,
    check_probabilities,
    of_logits,
    of_probabilities,
    places_of,
    smallest_probability,
)

UNLABELLED_PIECE = 1 << 22  # logits that are worked on together
LABELS_HINT = "check the dataset's classes, or the metric's ignore_index"
OOD_LABELS_HINT = f'{LABELS_HINT} or ood_index'


def read_prediction(
    sample: Mapping,
    *,
    ignore_index: int,
    name: str,
    wanted: Set[str] = frozenset(),
    floor: float = 0.0,
    region: Callable[[Tensor], Tensor] | None = None,
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
        wanted: Some of :data:`~mmcalib.metrics.predictions.WANTED`.
        floor: Of the listed probabilities of all classes.
        region: Given the ``(H, W)`` labels, returns a mask of the pixels to keep.

    Raises:
        ValueError: For NaN or infinite predictions, scores that are not probabilities, labels out
            of range, sizes that differ, logits that the prediction did not come from (test-time
            augmentation), a region or distance of a sample that has no pixels, or a sample that
            lacks one of the keys above. Each names the sample.
    """
    if 'seg_logits' in sample:
        return _read_segmentation(sample, ignore_index, name, wanted, floor, region)
    if 'pred_score' in sample:
        if region is not None or 'distance' in wanted:
            raise ValueError(
                f"{name} is a classifier's, which has one prediction and no pixels: neither a "
                "protocol other than 'pooled' nor a distance from the boundary makes sense"
            )
        return _read_classification(sample, name, wanted, floor)
    _refuse_unknown(sample, name)


def _refuse_unknown(sample: Mapping, name: str) -> NoReturn:
    raise ValueError(
        f'{name} has neither pred_score (mmpretrain) nor seg_logits (mmseg), so its confidence is '
        f'unknown; it has {sorted(sample)}'
    )


def scores_of(sample: Mapping) -> Tensor | None:
    """Return the tensor that a sample's confidence is computed from, None if it has none."""
    if 'seg_logits' in sample:
        return sample['seg_logits']['data']
    return sample.get('pred_score')


def logits_of(sample: Mapping) -> Tensor:
    """Return the logits of an evaluated data sample, up to a constant of each prediction.

    Those of a classifier are the logarithms of its probabilities, so that none is further below
    the largest than the least probability of its type can tell: 87 nats in float32.

    Returns:
        ``(K,)`` or ``(K, H, W)``, in float32 or float64.
    """
    if 'seg_logits' in sample:
        return at_least_single(sample['seg_logits']['data'].detach())
    scores = sample['pred_score'].detach()
    return at_least_single(scores).clamp(min=smallest_probability(scores.dtype)).log()


def read_labels(sample: Mapping, *, ignore_index: int, name: str) -> tuple[Tensor, Tensor]:
    """Return the predicted and the true labels of an mmseg sample's valid pixels, both ``(M,)``.

    Raises:
        ValueError: If the sample has none, or they differ in size.
    """
    predicted, label = _label_maps(sample, name)
    predicted, label = predicted.cpu().long(), label.cpu().long()
    _check_size(name, 'pred_sem_seg', tuple(predicted.shape), label)
    valid = label != ignore_index
    return predicted[valid], label[valid]


def read_logits(
    sample: Mapping, logits: Tensor, *, ignore_index: int, name: str
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
    _check_finite(logits, name, 'logits')
    if 'seg_logits' in sample:
        predicted, label = (x.to(logits.device).long() for x in _label_maps(sample, name))
        _check_size(name, 'seg_logits', tuple(logits.shape[1:]), label)
        kept = (label != ignore_index).flatten().nonzero().squeeze(1)
        label, predicted = label.flatten()[kept], predicted.flatten()[kept]
        check_labels(label, max(len(logits), 2), name=name, hint=LABELS_HINT)
        return logits.flatten(1).index_select(1, kept).T, label, predicted
    scores, label = sample['pred_score'].to(logits), sample.get('gt_label')
    if label is None or label.numel() != 1:
        raise ValueError(
            f'{name} needs one gt_label; got {"none" if label is None else label.tolist()}'
        )
    if scores.shape != logits.shape or (scores - logits.softmax(0)).abs().max() > SUM_TOLERANCE:
        raise ValueError(
            f"the scores of {name} are not the softmax of what its model's head returns: another "
            'activation, or logits that are changed after the head, cannot be scaled in its layers'
        )
    label = label.to(logits.device).long().reshape(1)
    check_labels(label, len(logits), name=name, hint=LABELS_HINT)
    return logits[None], label, logits.argmax(0, keepdim=True)


def read_ood_scores(
    sample: Mapping,
    *,
    scores: Collection[str],
    ood_index: int | None,
    ignore_index: int,
    name: str,
) -> tuple[dict[str, Tensor], Tensor]:
    """Return how sure an evaluated data sample's valid predictions are, and what is seen in each.

    Args:
        sample: As for :func:`read_prediction`; a classifier's may also have its ``logits``.
        scores: Some of :data:`~mmcalib.metrics.ood_scores.SCORES`.
        ood_index: Label of what is out of distribution. So are a classifier's negative labels.
        ignore_index: Label of the pixels to leave out.
        name: What errors call the sample.

    Returns:
        ``(M,)`` of each score, on the CPU, and ``(M,)`` int64: 0 in distribution, 1 of the first
        OOD set (label -1, or `ood_index`), 2 of the second (label -2), and so on.

    Raises:
        ValueError: For what :func:`read_prediction` and :func:`read_logits` refuse, scores that
            need logits where only probabilities are there, or pixels without an `ood_index`.
    """
    if 'seg_logits' in sample:
        return _read_ood_pixels(sample, scores, ood_index, ignore_index, name)
    if 'pred_score' not in sample:
        _refuse_unknown(sample, name)
    probs, label = _probabilities_and_label(sample, name)
    number = 1 if label.item() == ood_index else max(-label.item(), 0)
    kind = torch.tensor([number])
    if not number:
        check_labels(label, len(probs), name=name, hint=OOD_LABELS_HINT)
    if 'logits' in sample:
        known = {**sample, 'gt_label': torch.where(kind > 0, 0, label)}
        logits = read_logits(known, sample['logits'], ignore_index=ignore_index, name=name)[0]
        return scores_of_logits(logits.T, scores), kind
    _refuse_without_logits(
        scores, name, "add custom_hooks=[dict(type='KeepLogitsHook')] to the config"
    )
    return scores_of_probabilities(probs.clamp(max=1)[:, None], scores), kind


def _read_ood_pixels(
    sample: Mapping, scores: Collection[str], ood_index: int | None, ignore_index: int, name: str
) -> tuple[dict[str, Tensor], Tensor]:
    if ood_index is None:
        raise ValueError(
            f'{name} is a segmentation: give ood_index, the label of the pixels that are out of '
            'distribution'
        )
    raw, label = sample['seg_logits']['data'], _label_maps(sample, name)[1]
    is_ood = label == ood_index
    known = torch.where(is_ood, int(ignore_index == 0), label)  # any label of a class will do
    seen = known[label != ignore_index]
    check_labels(seen, max(len(raw), 2), name=name, hint=OOD_LABELS_HINT)
    known = {**sample, 'gt_sem_seg': {'data': known}}
    logits, _, predicted = read_logits(known, raw, ignore_index=ignore_index, name=name)
    kind = is_ood[label != ignore_index].long().cpu()
    if len(raw) == 1:
        _refuse_without_logits(scores, name, 'give the head two channels')
        prob = logits[:, 0]
        _check_binary(prob, name)
        return scores_of_probabilities(torch.stack([1 - prob, prob]), scores), kind
    if len(logits):
        own = logits.gather(1, predicted[:, None])[:, 0]
        _check_explained(int((own < logits.amax(dim=1)).sum()), name)
    return scores_of_logits(logits.T, scores), kind


def _refuse_without_logits(scores: Collection[str], name: str, remedy: str) -> None:
    missing = [score for score in scores if score in NEED_LOGITS]
    if missing:
        raise ValueError(
            f'{" and ".join(missing)} need logits, and {name} has only probabilities: {remedy}, or '
            f'take {" and ".join(score for score in SCORES if score not in NEED_LOGITS)}'
        )


def _check_size(name: str, key: str, size: tuple[int, ...], label: Tensor) -> None:
    if tuple(label.shape) != size:
        raise ValueError(
            f'{key} of {name} have the size {size}, gt_sem_seg {tuple(label.shape)}: in the test '
            'pipeline LoadAnnotations must come after Resize, or AtInputSize after both'
        )


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
        _check_finite(at_least_single(logits), name, 'seg_logits')
        predicted = _plane(sample['pred_sem_seg']).long()
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
    _check_finite(scores, name, 'pred_score')
    check_probabilities(scores[None], f'pred_score of {name}')
    conf, predicted = scores.clamp(max=1).max(dim=0)
    return UnlabelledPrediction(conf, predicted, scores)


def _map_confidence(logits: Tensor, predicted: Tensor) -> Tensor:
    """Return the probability of the predicted class of ``(K, …)`` logits, in float32."""
    logits = logits.float()
    if len(logits) == 1:  # a binary head, see read_prediction
        return torch.where(predicted == 1, logits[0], 1 - logits[0])
    return 1 / (logits - logits.amax(dim=0)).exp().sum(dim=0)


def read_map(sample: Mapping, *, step: int = 1) -> PredictionMap:
    """Read every `step`-th pixel of every `step`-th line of an evaluated data sample of mmseg.

    Nothing is computed, and nothing new is kept, on the sample's own device.

    Args:
        sample: What :func:`read_prediction` has read without complaint.
        step: At least 1.
    """
    pixels = slice(None, None, step), slice(None, None, step)
    logits = torch.stack([plane.detach().cpu()[pixels] for plane in sample['seg_logits']['data']])
    predicted = _plane(sample['pred_sem_seg']).cpu()[pixels].long()
    label = _plane(sample['gt_sem_seg']).cpu()[pixels].long()
    return PredictionMap(_map_confidence(logits, predicted), predicted, label)


def map_size(sample: Mapping) -> tuple[int, int] | None:
    """Return (H, W) of an evaluated data sample of mmseg, None for another toolbox's."""
    if 'seg_logits' not in sample:
        return None
    return tuple(sample['seg_logits']['data'].shape[-2:])


def _read_classification(sample: Mapping, name: str, wanted: Set[str], floor: float) -> Prediction:
    smallest = smallest_probability(sample['pred_score'].dtype)
    scores, label = _probabilities_and_label(sample, name)
    check_labels(label, len(scores), name=name, hint=LABELS_HINT)
    probs = scores.clamp(max=1)[:, None]
    return of_probabilities(probs, label, wanted=wanted, floor=floor, smallest=smallest)


def _probabilities_and_label(sample: Mapping, name: str) -> tuple[Tensor, Tensor]:
    """Return the ``(K,)`` probabilities and ``(1,)`` label of a classifier's sample, on the CPU."""
    label = sample.get('gt_label')
    scores = at_least_single(sample['pred_score'].detach()).cpu()
    _check_finite(scores, name, 'pred_score')
    if label is None or label.numel() != 1:
        raise ValueError(
            f'{name} needs one gt_label; got '
            f'{"none" if label is None else label.tolist()}. Calibration errors are defined for '
            'single-label classification'
        )
    if scores.ndim != 1:
        raise ValueError(f'pred_score of {name} must be (K,), got {tuple(scores.shape)}')
    check_probabilities(scores[None], f'pred_score of {name}')
    return scores, label.cpu().long().reshape(1)


def _read_segmentation(
    sample: Mapping,
    ignore_index: int,
    name: str,
    wanted: Set[str],
    floor: float,
    region: Callable[[Tensor], Tensor] | None,
) -> Prediction:
    raw = sample['seg_logits']['data'].detach()
    logits = at_least_single(raw)
    predicted, label = (x.to(logits.device) for x in _label_maps(sample, name))
    _check_size(name, 'seg_logits', tuple(logits.shape[1:]), label)
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
        _check_finite(logits, name, 'seg_logits')
        found = _of_binary_head(logits[0], predicted, label, valid, name, raw.dtype, wanted, floor)
        return found._replace(distance=distance)
    reading = of_logits(logits, predicted, label, valid, wanted=wanted, floor=floor)
    if not reading.finite:
        _check_finite(logits, name, 'seg_logits')
    _check_explained(reading.unexplained, name)
    return reading.prediction._replace(distance=distance)


def _check_explained(unexplained: int, name: str) -> None:
    if unexplained:
        raise ValueError(
            f'pred_sem_seg of {name} is not the argmax of its seg_logits at {unexplained} '
            'pixels. Under test-time augmentation mmseg keeps the logits of the last augmentation '
            'only, whose calibration error would say nothing about the prediction: test without it'
        )


def _of_binary_head(
    prob: Tensor,
    predicted: Tensor,
    label: Tensor,
    valid: Tensor,
    name: str,
    dtype: torch.dtype,
    wanted: Set[str],
    floor: float,
) -> Prediction:
    """Return the predictions of a head whose one "logit" is the probability of class 1."""
    _check_binary(prob, name)
    kept = valid.nonzero().squeeze(1)
    prob, predicted, label = (x.index_select(0, kept) for x in (prob, predicted, label))
    # What is nearest to 1 stands for all within a quarter of its type's resolution.
    smallest = torch.tensor([torch.finfo(dtype).eps / 4, smallest_probability(dtype)])
    return of_probabilities(
        torch.stack([1 - prob, prob]),
        label,
        predicted=predicted,
        wanted=wanted,
        floor=floor,
        smallest=smallest,
    )


def _check_binary(prob: Tensor, name: str) -> None:
    if len(prob) and (prob.min() < 0 or prob.max() > 1):
        raise ValueError(
            f'seg_logits of {name} have one class but are no probabilities: they span '
            f'[{prob.min().item():.4g}, {prob.max().item():.4g}]'
        )


def _label_maps(sample: Mapping, name: str) -> tuple[Tensor, Tensor]:
    """Return the predicted and the true label map of an mmseg sample, both ``(H, W)``."""
    if 'pred_sem_seg' not in sample:
        raise ValueError(
            f'{name} has no pred_sem_seg, only {sorted(sample)}: which class was predicted, and '
            'so whether it is right, is unknown'
        )
    if 'gt_sem_seg' not in sample:
        raise ValueError(f'{name} has no gt_sem_seg: its pipeline needs LoadAnnotations')
    return _plane(sample['pred_sem_seg']), _plane(sample['gt_sem_seg'])


def _plane(pixels: Mapping) -> Tensor:
    """Return a label map ``(H, W)``, which mmseg stores with or without a leading 1."""
    data = pixels['data']
    return data.reshape(data.shape[-2:])


def _check_finite(scores: Tensor, name: str, key: str) -> None:
    # One sum is several times cheaper than a test per value; it is not finite if any value is not.
    if not scores.sum().isfinite():
        wrong = int((~scores.isfinite()).sum())
        if wrong:
            raise ValueError(
                f'{key} of {name} has {wrong} NaN or infinite values out of {scores.numel()}: the '
                'model has diverged, or its input is broken'
            )
