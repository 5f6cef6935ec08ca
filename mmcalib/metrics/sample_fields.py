"""The fields of a toolbox's data sample, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from torch import Tensor

from mmcalib.argument_checks import at_least_single
from mmcalib.metrics.predictions import check_probabilities, smallest_probability

LABELS_HINT = "check the dataset's classes, or the metric's ignore_index"


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


def map_size(sample: Mapping) -> tuple[int, int] | None:
    """Return (H, W) of an evaluated data sample of mmseg, None for another toolbox's."""
    if 'seg_logits' not in sample:
        return None
    return tuple(sample['seg_logits']['data'].shape[-2:])


def refuse_unknown(sample: Mapping, name: str) -> NoReturn:
    raise ValueError(
        f'{name} has neither pred_score (mmpretrain) nor seg_logits (mmseg), so its confidence is '
        f'unknown; it has {sorted(sample)}'
    )


def probabilities_and_label(sample: Mapping, name: str) -> tuple[Tensor, Tensor]:
    """Return the ``(K,)`` probabilities and ``(1,)`` label of a classifier's sample, on the CPU."""
    label = sample.get('gt_label')
    scores = at_least_single(sample['pred_score'].detach()).cpu()
    check_finite(scores, name, 'pred_score')
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


def label_maps(sample: Mapping, name: str) -> tuple[Tensor, Tensor]:
    """Return the predicted and the true label map of an mmseg sample, both ``(H, W)``."""
    if 'pred_sem_seg' not in sample:
        raise ValueError(
            f'{name} has no pred_sem_seg, only {sorted(sample)}: which class was predicted, and '
            'so whether it is right, is unknown'
        )
    if 'gt_sem_seg' not in sample:
        raise ValueError(f'{name} has no gt_sem_seg: its pipeline needs LoadAnnotations')
    return plane(sample['pred_sem_seg']), plane(sample['gt_sem_seg'])


def plane(pixels: Mapping) -> Tensor:
    """Return a label map ``(H, W)``, which mmseg stores with or without a leading 1."""
    data = pixels['data']
    return data.reshape(data.shape[-2:])


def check_size(name: str, key: str, size: tuple[int, ...], label: Tensor) -> None:
    if tuple(label.shape) != size:
        raise ValueError(
            f'{key} of {name} have the size {size}, gt_sem_seg {tuple(label.shape)}: in the test '
            'pipeline LoadAnnotations must come after Resize, or AtInputSize after both'
        )


def check_finite(scores: Tensor, name: str, key: str) -> None:
    # One sum is several times cheaper than a test per value; it is not finite if any value is not.
    if not scores.sum().isfinite():
        wrong = int((~scores.isfinite()).sum())
        if wrong:
            raise ValueError(
                f'{key} of {name} has {wrong} NaN or infinite values out of {scores.numel()}: the '
                'model has diverged, or its input is broken'
            )


def check_binary(prob: Tensor, name: str) -> None:
    if len(prob) and (prob.min() < 0 or prob.max() > 1):
        raise ValueError(
            f'seg_logits of {name} have one class but are no probabilities: they span '
            f'[{prob.min().item():.4g}, {prob.max().item():.4g}]'
        )


def check_explained(unexplained: int, name: str) -> None:
    if unexplained:
        raise ValueError(
            f'pred_sem_seg of {name} is not the argmax of its seg_logits at {unexplained} '
            'pixels. Under test-time augmentation mmseg keeps the logits of the last augmentation '
            'only, whose calibration error would say nothing about the prediction: test without it'
        )
