"""Confidence and correctness out of a toolbox's data sample: the only file that knows its keys."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class Prediction(NamedTuple):
    """The valid predictions of one image: one for a classifier, one per pixel for a segmentor.

    Attributes:
        conf: ``(M,)`` probability of the predicted class, float32 or float64, on the CPU.
        correct: ``(M,)`` booleans, on the CPU.
    """

    conf: Tensor
    correct: Tensor


def read_prediction(sample: Mapping, *, ignore_index: int, name: str) -> Prediction:
    """Read an evaluated data sample of mmpretrain or mmseg.

    Args:
        sample: mmpretrain's, with ``pred_score`` ``(K,)`` softmax probabilities and ``gt_label``
            ``(1,)``; or mmseg's, with ``seg_logits`` ``(K, H, W)``, raw for K > 1 and already
            sigmoid for K = 1, ``pred_sem_seg`` and ``gt_sem_seg`` ``(1, H, W)``.
        ignore_index: Label of the pixels to leave out. A classifier's labels are all valid.
        name: What errors call the sample.

    Raises:
        ValueError: For NaN or infinite predictions, scores that are not probabilities, labels out
            of range, sizes that differ, logits that the prediction did not come from (test-time
            augmentation), or a sample that holds none of the keys above. Each names the sample.
    """
    if 'seg_logits' in sample:
        return _read_segmentation(sample, ignore_index, name)
    if 'pred_score' in sample:
        return _read_classification(sample, name)
    raise ValueError(
        f'{name} has neither pred_score (mmpretrain) nor seg_logits (mmseg), so its confidence is '
        f'unknown; it has {sorted(sample)}'
    )


def _read_classification(sample: Mapping, name: str) -> Prediction:
    scores = _float(sample['pred_score'].detach())
    _check_finite(scores, name, 'pred_score')
    label = sample.get('gt_label')
    if label is None or label.numel() != 1:
        raise ValueError(
            f'{name} needs one gt_label; got '
            f'{"none" if label is None else label.tolist()}. Calibration errors are defined for '
            'single-label classification'
        )
    total = scores.sum().item()
    if scores.ndim != 1 or scores.min() < 0 or abs(total - 1) > 1e-2:
        raise ValueError(
            f'pred_score of {name}, shape {tuple(scores.shape)}, is no distribution over classes: '
            f'it sums to {total:.4g}. The head must end in a softmax'
        )
    _check_labels(label, len(scores), name)
    conf, predicted = scores.max(dim=0, keepdim=True)
    return Prediction(conf.clamp(max=1).cpu(), (predicted == label.to(predicted)).cpu())


def _read_segmentation(sample: Mapping, ignore_index: int, name: str) -> Prediction:
    logits = _float(sample['seg_logits']['data'].detach())
    _check_finite(logits, name, 'seg_logits')
    if 'gt_sem_seg' not in sample:
        raise ValueError(f'{name} has no gt_sem_seg: its pipeline needs LoadAnnotations')
    label = _plane(sample['gt_sem_seg']).to(logits.device)
    predicted = _plane(sample['pred_sem_seg']).to(logits.device).long()
    num_classes, size = len(logits), tuple(logits.shape[1:])
    if tuple(label.shape) != size:
        raise ValueError(
            f'seg_logits of {name} have the size {size}, gt_sem_seg {tuple(label.shape)}: in the '
            'test pipeline LoadAnnotations must come after Resize'
        )
    valid = label != ignore_index
    label = label[valid]
    _check_labels(label, max(num_classes, 2), name)

    if num_classes == 1:  # a binary head, whose "logits" are the probability of class 1
        if logits.min() < 0 or logits.max() > 1:
            raise ValueError(
                f'seg_logits of {name} have one class but are no probabilities: they span '
                f'[{logits.min().item():.4g}, {logits.max().item():.4g}]'
            )
        conf = torch.where(predicted == 1, logits[0], 1 - logits[0])
    else:
        highest = logits.amax(dim=0)
        unexplained = int((logits.gather(0, predicted[None])[0] != highest).sum())
        if unexplained:
            raise ValueError(
                f'pred_sem_seg of {name} is not the argmax of its seg_logits at {unexplained} '
                'pixels. Under test-time augmentation mmseg keeps the logits of the last '
                'augmentation only, whose calibration error would say nothing about the '
                'prediction: test without it'
            )
        conf = torch.exp(highest - logits.logsumexp(dim=0)).clamp(max=1)
    correct = predicted[valid] == label
    return Prediction(conf[valid].cpu(), correct.cpu())


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
    wrong = (label < 0) | (label >= num_classes)
    if wrong.any():
        values = label[wrong].unique().tolist()[:5]
        raise ValueError(
            f'{name} has {int(wrong.sum())} labels outside [0, {num_classes}), such as {values}: '
            "check the dataset's classes, or the metric's ignore_index"
        )
