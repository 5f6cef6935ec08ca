"""Confidence and correctness out of a toolbox's data sample: the only file that knows its keys."""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

# How far a probability may lie above 1, and how far the sum of a half-precision softmax from 1.
TOLERANCE = 1e-6
SUM_TOLERANCE = 1e-2


class Prediction(NamedTuple):
    """The predictions of one image: one for a classifier, one per pixel for a segmentor.

    All on the CPU; what was not asked for is None.

    Attributes:
        conf: ``(M,)`` probability of the predicted class, float32 or float64.
        correct: ``(M,)`` booleans.
        label: ``(M,)`` int64 true classes.
        nll: ``(M,)`` negative log-likelihood of the true class, in nats.
        brier: ``(M,)`` sum over classes of (probability - [is the true class])².
        probs: ``(K, M)`` probabilities of all classes; K is 2 for a binary head.
    """

    conf: Tensor
    correct: Tensor
    label: Tensor
    nll: Tensor | None = None
    brier: Tensor | None = None
    probs: Tensor | None = None


def read_prediction(
    sample: Mapping,
    *,
    ignore_index: int,
    name: str,
    wanted: Collection[str] = (),
    region: Callable[[Tensor], Tensor] | None = None,
) -> Prediction:
    """Read an evaluated data sample of mmpretrain or mmseg.

    Args:
        sample: mmpretrain's, with ``pred_score`` ``(K,)`` softmax probabilities and ``gt_label``
            ``(1,)``; or mmseg's, with ``seg_logits`` ``(K, H, W)``, raw for K > 1 and already
            sigmoid for K = 1, ``pred_sem_seg`` and ``gt_sem_seg`` ``(1, H, W)``.
        ignore_index: Label of the pixels to leave out. A classifier's labels are all valid.
        name: What errors call the sample.
        wanted: Any of ``'nll'``, ``'brier'`` and ``'probs'``.
        region: Given the ``(H, W)`` labels, returns a mask of the pixels to keep.

    Raises:
        ValueError: For NaN or infinite predictions, scores that are not probabilities, labels out
            of range, sizes that differ, logits that the prediction did not come from (test-time
            augmentation), a region of a sample that has no pixels, or a sample that holds none of
            the keys above. Each names the sample.
    """
    if 'seg_logits' in sample:
        return _read_segmentation(sample, ignore_index, name, wanted, region)
    if 'pred_score' in sample:
        if region is not None:
            raise ValueError(
                f"{name} is a classifier's, which has one prediction and no pixels: only the "
                "protocol 'pooled' makes sense"
            )
        return _read_classification(sample, name, wanted)
    raise ValueError(
        f'{name} has neither pred_score (mmpretrain) nor seg_logits (mmseg), so its confidence is '
        f'unknown; it has {sorted(sample)}'
    )


def read_labels(sample: Mapping, *, ignore_index: int, name: str) -> tuple[Tensor, Tensor]:
    """Return the predicted and the true labels of an mmseg sample's valid pixels, both ``(M,)``.

    Raises:
        ValueError: If the sample has none, or they differ in size.
    """
    if 'pred_sem_seg' not in sample:
        raise ValueError(f'{name} has no pred_sem_seg: its mIoU is unknown')
    if 'gt_sem_seg' not in sample:
        raise ValueError(f'{name} has no gt_sem_seg: its pipeline needs LoadAnnotations')
    predicted, label = (_plane(sample[key]) for key in ('pred_sem_seg', 'gt_sem_seg'))
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
    logits = _float(logits.detach())
    _check_finite(logits, name, 'logits')
    if 'seg_logits' in sample:
        if 'gt_sem_seg' not in sample:
            raise ValueError(f'{name} has no gt_sem_seg: its pipeline needs LoadAnnotations')
        label = _plane(sample['gt_sem_seg']).to(logits.device).long()
        _check_size(name, 'seg_logits', tuple(logits.shape[1:]), label)
        predicted = _plane(sample['pred_sem_seg']).to(logits.device).long()
        kept = (label != ignore_index).flatten().nonzero().squeeze(1)
        label, predicted = label.flatten()[kept], predicted.flatten()[kept]
        _check_labels(label, max(len(logits), 2), name)
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
    _check_labels(label, len(logits), name)
    return logits[None], label, logits.argmax(0, keepdim=True)


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


def read_map(sample: Mapping, *, step: int = 1) -> PredictionMap:
    """Read every `step`-th pixel of every `step`-th line of an evaluated data sample of mmseg.

    Nothing is computed, and nothing new is kept, on the sample's own device.

    Args:
        sample: What :func:`read_prediction` has read without complaint.
        step: At least 1.
    """
    pixels = slice(None, None, step), slice(None, None, step)
    logits = torch.stack([plane.detach().cpu()[pixels] for plane in sample['seg_logits']['data']])
    logits = logits.float()
    predicted = _plane(sample['pred_sem_seg']).cpu()[pixels].long()
    label = _plane(sample['gt_sem_seg']).cpu()[pixels].long()
    if len(logits) == 1:  # a binary head, see read_prediction
        conf = torch.where(predicted == 1, logits[0], 1 - logits[0])
    else:
        conf = torch.exp(logits.amax(dim=0) - logits.logsumexp(dim=0)).clamp(max=1)
    return PredictionMap(conf, predicted, label)


def map_size(sample: Mapping) -> tuple[int, int] | None:
    """Return (H, W) of an evaluated data sample of mmseg, None for another toolbox's."""
    if 'seg_logits' not in sample:
        return None
    return tuple(sample['seg_logits']['data'].shape[-2:])


def _read_classification(sample: Mapping, name: str, wanted: Collection[str]) -> Prediction:
    scores = _float(sample['pred_score'].detach()).cpu()
    _check_finite(scores, name, 'pred_score')
    label = sample.get('gt_label')
    if label is None or label.numel() != 1:
        raise ValueError(
            f'{name} needs one gt_label; got '
            f'{"none" if label is None else label.tolist()}. Calibration errors are defined for '
            'single-label classification'
        )
    total = scores.sum().item()
    if (
        scores.ndim != 1
        or scores.min() < 0
        or scores.max() > 1 + TOLERANCE
        or abs(total - 1) > SUM_TOLERANCE
    ):
        raise ValueError(
            f'pred_score of {name}, shape {tuple(scores.shape)}, is no distribution over classes: '
            f'it sums to {total:.7g}, and its largest value is {scores.max().item():.7g}. The head '
            'must end in a softmax'
        )
    label = label.cpu().long().reshape(1)
    _check_labels(label, len(scores), name)
    scores = scores.clamp(max=1)
    conf, predicted = scores.max(dim=0, keepdim=True)
    return Prediction(
        conf, predicted == label, label, **_of_probabilities(scores[:, None], label, wanted)
    )


def _read_segmentation(
    sample: Mapping,
    ignore_index: int,
    name: str,
    wanted: Collection[str],
    region: Callable[[Tensor], Tensor] | None,
) -> Prediction:
    logits = _float(sample['seg_logits']['data'].detach())
    _check_finite(logits, name, 'seg_logits')
    if 'gt_sem_seg' not in sample:
        raise ValueError(f'{name} has no gt_sem_seg: its pipeline needs LoadAnnotations')
    label = _plane(sample['gt_sem_seg']).to(logits.device)
    predicted = _plane(sample['pred_sem_seg']).to(logits.device).long()
    num_classes = len(logits)
    _check_size(name, 'seg_logits', tuple(logits.shape[1:]), label)
    valid = label != ignore_index
    if region is not None:
        valid &= region(label)
    label = torch.where(valid, label, 0).long()
    _check_labels(label, max(num_classes, 2), name)
    # Taking by index is several times faster than by mask.
    kept = valid.flatten().nonzero().squeeze(1)

    if num_classes == 1:  # a binary head, whose "logits" are the probability of class 1
        if logits.min() < 0 or logits.max() > 1:
            raise ValueError(
                f'seg_logits of {name} have one class but are no probabilities: they span '
                f'[{logits.min().item():.4g}, {logits.max().item():.4g}]'
            )
        probs = torch.cat([1 - logits, logits]).flatten(1).index_select(1, kept)
        label, predicted = (plane.flatten().index_select(0, kept) for plane in (label, predicted))
        conf = probs.gather(0, predicted[None])[0]
        return _on_cpu(
            Prediction(conf, predicted == label, label, **_of_probabilities(probs, label, wanted))
        )

    highest = logits.amax(dim=0)
    unexplained = logits.gather(0, predicted[None])[0] != highest
    if unexplained.any():
        raise ValueError(
            f'pred_sem_seg of {name} is not the argmax of its seg_logits at '
            f'{int(unexplained.sum())} pixels. Under test-time augmentation mmseg keeps the logits '
            'of the last augmentation only, whose calibration error would say nothing about the '
            'prediction: test without it'
        )
    normaliser = logits.logsumexp(dim=0)
    own = logits.gather(0, label[None])[0] if {'nll', 'brier'} & set(wanted) else None
    planes = {
        'conf': torch.exp(highest - normaliser).clamp(max=1),
        'correct': predicted == label,
        'label': label,
        'nll': normaliser - own if 'nll' in wanted else None,
        'brier': _brier_of_logits(logits, normaliser, own) if 'brier' in wanted else None,
    }
    of_pixels = {
        key: plane if plane is None else plane.flatten().index_select(0, kept)
        for key, plane in planes.items()
    }
    probs = None
    if 'probs' in wanted:
        probs = (logits - normaliser).exp_().clamp_(max=1).flatten(1).index_select(1, kept)
    return _on_cpu(Prediction(**of_pixels, probs=probs))


def _brier_of_logits(logits: Tensor, normaliser: Tensor, own: Tensor) -> Tensor:
    """Return the sum over classes of (p - [is the true class])², which is Σp² - 2p_y + 1."""
    squares = (2 * logits).logsumexp(dim=0).sub_(2 * normaliser).exp_()
    return (squares - 2 * (own - normaliser).exp_() + 1).clamp_(min=0)


def _of_probabilities(probs: Tensor, label: Tensor, wanted: Collection[str]) -> dict:
    """Return what is wanted of ``(K, M)`` probabilities and ``(M,)`` labels."""
    own = probs.gather(0, label[None])[0]
    return {
        # A probability that was rounded to 0 in half precision counts as the smallest of float32.
        'nll': -own.clamp(min=torch.finfo(own.dtype).tiny).log() if 'nll' in wanted else None,
        'brier': probs.square().sum(dim=0) - 2 * own + 1 if 'brier' in wanted else None,
        'probs': probs if 'probs' in wanted else None,
    }


def _on_cpu(prediction: Prediction) -> Prediction:
    return Prediction(*(None if value is None else value.cpu() for value in prediction))


def _plane(pixels: Mapping) -> Tensor:
    """Return a label map ``(H, W)``, which mmseg stores with or without a leading 1."""
    data = pixels['data']
    return data.reshape(data.shape[-2:])


def _float(scores: Tensor) -> Tensor:
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores


def _check_finite(scores: Tensor, name: str, key: str) -> None:
    # One sum is several times cheaper than a test per value; it is not finite if any value is not.
    if not scores.sum().isfinite():
        wrong = int((~scores.isfinite()).sum())
        if wrong:
            raise ValueError(
                f'{key} of {name} has {wrong} NaN or infinite values out of {scores.numel()}: the '
                'model has diverged, or its input is broken'
            )


def _check_labels(label: Tensor, num_classes: int, name: str) -> None:
    lowest, highest = torch.aminmax(label) if label.numel() else (0, 0)
    if lowest < 0 or highest >= num_classes:
        wrong = (label < 0) | (label >= num_classes)
        values = label[wrong].unique().tolist()[:5]
        raise ValueError(
            f'{name} has {int(wrong.sum())} labels outside [0, {num_classes}), such as {values}: '
            "check the dataset's classes, or the metric's ignore_index"
        )
