"""An image with several labels: each class is a yes or no with a probability of its own."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mmcalib.checks import at_least_single
from mmcalib.samples.reading import class_scores, needed, tensor_of

IGNORED = 255


def as_binary_map(sample: Mapping) -> dict:
    """Return an mmpretrain sample of several labels as a binary mmseg sample of a pixel per class.

    So whatever reads binary segmentations reads it: a probability and a label of each class.

    Args:
        sample: With ``pred_score`` ``(K,)``, and ``gt_score`` ``(K,)`` of 0, 1 and -1 for what is
            not to be judged, or ``gt_label`` with the classes that are there.

    Raises:
        ValueError: If it lacks one of them.
    """
    scores = at_least_single(class_scores(sample, 'a prediction'))
    label = _labels(sample, len(scores)).to(scores.device)
    predicted = tensor_of(sample, 'pred_label')  # by the head's threshold, or its number of labels
    if predicted is None:
        predicted = (scores > 0.5).nonzero()[:, 0]
    maps = {
        'seg_logits': scores[None, None],
        'pred_sem_seg': torch.zeros_like(label).index_fill(0, predicted, 1)[None, None],
        'gt_sem_seg': label[None, None],
    }
    return {**sample, **{key: {'data': value} for key, value in maps.items()}}


def _labels(sample: Mapping, num_classes: int) -> Tensor:
    scores = tensor_of(sample, 'gt_score')
    if scores is not None:
        return torch.where(scores < 0, IGNORED, (scores > 0.5).long())
    present = needed(sample, 'gt_label', 'a prediction of several labels').cpu().long()
    return torch.zeros(num_classes, dtype=torch.int64).index_fill(0, present, 1)
