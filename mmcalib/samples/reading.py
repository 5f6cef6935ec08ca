"""What an evaluated data sample of a toolbox holds, read and checked in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from mmengine.structures import BaseDataElement
from torch import Tensor

from mmcalib.checks import (
    SUM_TOLERANCE,
    at_least_single,
    check_explained,
    check_finite,
    check_labels,
    check_probabilities,
)

Sample = Mapping | BaseDataElement
LABELS_HINT = "check the dataset's classes, or the metric's ignore_index"
BACKGROUND = 'background'  # the name of the class that is no object


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
        raise ValueError(f'{name} has no {key}, only {sorted(sample.keys())}{hint}')
    return found.detach()


def class_scores(sample: Sample, name: str) -> Tensor:
    """Return the ``(K,)`` probabilities of a classifier's sample, unchecked."""
    hint = '; a classifier has pred_score (mmpretrain), a segmentor seg_logits (mmseg)'
    return needed(sample, 'pred_score', name, hint)


def class_probabilities(sample: Sample, name: str) -> Tensor:
    """Return the ``(K, 1)`` probabilities of a classifier's sample, on the CPU."""
    scores = at_least_single(class_scores(sample, name)).cpu()
    name = f'pred_score of {name}'
    check_finite(scores, name)
    if scores.ndim != 1:
        raise ValueError(f'{name} must be (K,), got {tuple(scores.shape)}')
    check_probabilities(scores[:, None], name)
    return scores.clamp(max=1)[:, None]


def class_label(sample: Sample, name: str) -> Tensor:
    """Return the ``(1,)`` int64 label of a classifier's sample."""
    label = needed(sample, 'gt_label', name)
    if label.numel() != 1:
        raise ValueError(
            f'{name} needs one gt_label; got {label.tolist()}. Calibration errors are defined for '
            'single-label classification'
        )
    return label.long().reshape(1)


def read_scores(samples: Sequence[Sample]) -> list[tuple[np.ndarray, int]]:
    """Return the probabilities ``(K,)``, in their own type, and the label of classified images.

    Raises:
        ValueError: For NaN, scores that are no probabilities, or labels out of range.
    """
    scores = [class_scores(sample, name_of(sample)) for sample in samples]
    labels = [class_label(sample, name_of(sample)) for sample in samples]
    if len({(s.shape, s.dtype) for s in scores}) == 1 and scores[0].ndim == 1:
        rows, found = torch.stack(scores).cpu(), torch.cat(labels).cpu()
        probs = at_least_single(rows).T
        try:  # a batch at once, which takes a hundredth of one by one
            check_finite(probs, 'a batch')
            check_probabilities(probs, 'a batch')
            check_labels(found, len(probs))
            return list(zip(rows.numpy(), found.tolist(), strict=True))
        except ValueError:
            pass  # one of them is amiss, which is named below
    for sample, label in zip(samples, labels, strict=True):
        probs = class_probabilities(sample, name_of(sample))
        check_labels(label, len(probs), name=name_of(sample), hint=LABELS_HINT)
    return [(s.cpu().numpy(), int(y)) for s, y in zip(scores, labels, strict=True)]


def predicted_map(sample: Sample, name: str) -> Tensor:
    """Return the predicted label map of an mmseg sample, ``(H, W)`` int64."""
    data = needed(sample, 'pred_sem_seg', name)
    return data.reshape(data.shape[-2:]).long()  # mmseg stores a leading 1, or none


def label_maps(sample: Sample, name: str) -> tuple[Tensor, Tensor]:
    """Return the predicted and the true label map of an mmseg sample, both ``(H, W)`` int64."""
    label = needed(sample, 'gt_sem_seg', name, ': its pipeline needs LoadAnnotations')
    label = label.reshape(label.shape[-2:]).long()
    predicted = predicted_map(sample, name).to(label.device)
    if predicted.shape != label.shape:
        raise ValueError(
            f'the prediction of {name} has the size {tuple(predicted.shape)}, gt_sem_seg '
            f'{tuple(label.shape)}: in the test pipeline LoadAnnotations must come after Resize, '
            'or AtInputSize after both'
        )
    return predicted, label


def read_pixels(
    sample: Sample, *, ignore_index: int, name: str, hint: str = LABELS_HINT
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a segmentation's scores ``(K, H, W)``, predicted and true classes ``(H, W)``.

    Scores are logits, or of a binary head, K = 1, the probability of class 1.

    Raises:
        ValueError: For a field that is missing, sizes that differ, or labels out of range.
    """
    logits = needed(sample, 'seg_logits', name)
    predicted, label = (plane.to(logits.device) for plane in label_maps(sample, name))
    if logits.shape[1:] != label.shape:
        raise ValueError(
            f'seg_logits of {name} have the size {tuple(logits.shape[1:])}, gt_sem_seg '
            f'{tuple(label.shape)}: in the test pipeline LoadAnnotations must come after Resize, '
            'or AtInputSize after both'
        )
    check_labels(label[label != ignore_index], max(len(logits), 2), name=name, hint=hint)
    if len(logits) == 1 and logits.numel() and not 0 <= logits.min() <= logits.max() <= 1:
        check_finite(logits, f'seg_logits of {name}')
        raise ValueError(
            f'seg_logits of {name} have one class but are no probabilities: they span '
            f'[{logits.min().item():.4g}, {logits.max().item():.4g}]'
        )
    return logits, predicted, label


def read_labels(sample: Sample, *, ignore_index: int, name: str) -> tuple[Tensor, Tensor]:
    """Return the predicted and the true labels of an mmseg sample's valid pixels, both ``(M,)``."""
    predicted, label = (plane.cpu() for plane in label_maps(sample, name))
    valid = label != ignore_index
    return predicted[valid], label[valid]


def read_image(sample: Sample, *, ignore_index: int, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return an evaluated data sample's probabilities, predicted and true classes, on the CPU.

    Returns:
        ``(K, H, W)``, ``(H, W)`` and ``(H, W)`` of a segmentor, with K = 2 for a binary head;
        ``(K, 1)``, ``(1,)`` and ``(1,)`` of a classifier.
    """
    if 'seg_logits' not in sample:
        probs, label = class_probabilities(sample, name), class_label(sample, name).cpu()
        check_labels(label, len(probs), name=name, hint=LABELS_HINT)
        return probs, probs.argmax(dim=0), label
    logits, predicted, label = read_pixels(sample, ignore_index=ignore_index, name=name)
    check_explained(logits, predicted, name)
    logits = at_least_single(logits)
    probs = torch.cat([1 - logits, logits]) if len(logits) == 1 else logits.softmax(dim=0)
    return probs.cpu(), predicted.cpu(), label.cpu()


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
        predicted, label = (plane.to(logits.device) for plane in label_maps(sample, name))
        if logits.shape[1:] != label.shape:
            raise ValueError(
                f'logits of {name} have the size {tuple(logits.shape[1:])}, gt_sem_seg '
                f'{tuple(label.shape)}: in the test pipeline LoadAnnotations must come after Resize'
            )
        kept = (label != ignore_index).flatten().nonzero().squeeze(1)
        label, predicted = label.flatten()[kept], predicted.flatten()[kept]
        check_labels(label, max(len(logits), 2), name=name, hint=LABELS_HINT)
        return logits.flatten(1).index_select(1, kept).T, label, predicted
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
        sample: Of mmpretrain or mmseg; a classifier's may also have its ``logits``.
        ood_index: Label of what is out of distribution. So are a classifier's negative labels.
        ignore_index: Label of the pixels to leave out.
        name: What errors call the sample.

    Returns:
        Logits or probabilities ``(K, M)``, whether they are logits, and ``(M,)`` int64: 0 in
        distribution, 1 of the first OOD set (label -1, or `ood_index`), 2 of the second (label -2),
        and so on.
    """
    hint = f'{LABELS_HINT} or ood_index'
    if 'seg_logits' not in sample:
        probs, label = class_probabilities(sample, name), class_label(sample, name).cpu()
        kind = (
            torch.where(label == ood_index, 1, -label).clamp(min=0)
            if ood_index is not None
            else (-label).clamp(min=0)
        )
        check_labels(label[kind == 0], len(probs), name=name, hint=hint)
        logits = tensor_of(sample, 'logits')
        if logits is None:
            return probs, False, kind
        known = {**sample, 'gt_label': torch.where(kind > 0, 0, label)}
        return read_logits(known, logits, ignore_index=ignore_index, name=name)[0].T, True, kind
    if ood_index is None:
        raise ValueError(
            f'{name} is a segmentation: give ood_index, the label of the pixels that are out of '
            'distribution'
        )
    label = label_maps(sample, name)[1]
    known = torch.where(label == ood_index, int(ignore_index == 0), label)  # any class will do
    maps = {**sample, 'gt_sem_seg': {'data': known[None]}}
    logits, predicted, _ = read_pixels(maps, ignore_index=ignore_index, name=name, hint=hint)
    check_explained(logits, predicted, name)
    logits, valid = at_least_single(logits), (label != ignore_index).to(logits.device)
    rows, kind = logits[:, valid], (label == ood_index)[valid.to(label.device)].long().cpu()
    return (torch.cat([1 - rows, rows]), False, kind) if len(rows) == 1 else (rows, True, kind)
