"""Scores of how sure a prediction is, and what is seen in it, out of a data sample."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from mmcalib.argument_checks import check_labels
from mmcalib.metrics.data_samples import read_logits
from mmcalib.metrics.functional.out_of_distribution import (
    NEED_LOGITS,
    SCORES,
    scores_of_logits,
    scores_of_probabilities,
)
from mmcalib.metrics.sample_fields import (
    LABELS_HINT,
    check_binary,
    check_explained,
    label_maps,
    probabilities_and_label,
    refuse_unknown,
)

OOD_LABELS_HINT = f'{LABELS_HINT} or ood_index'


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
        scores: Some of :data:`~mmcalib.metrics.functional.out_of_distribution.SCORES`.
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
        refuse_unknown(sample, name)
    probs, label = probabilities_and_label(sample, name)
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
    raw, label = sample['seg_logits']['data'], label_maps(sample, name)[1]
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
        check_binary(prob, name)
        return scores_of_probabilities(torch.stack([1 - prob, prob]), scores), kind
    if len(logits):
        own = logits.gather(1, predicted[:, None])[:, 0]
        check_explained(int((own < logits.amax(dim=1)).sum()), name)
    return scores_of_logits(logits.T, scores), kind


def _refuse_without_logits(scores: Collection[str], name: str, remedy: str) -> None:
    missing = [score for score in scores if score in NEED_LOGITS]
    if missing:
        raise ValueError(
            f'{" and ".join(missing)} need logits, and {name} has only probabilities: {remedy}, or '
            f'take {" and ".join(score for score in SCORES if score not in NEED_LOGITS)}'
        )
