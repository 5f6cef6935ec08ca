"""The one reader of the toolboxes' data samples: it makes predictions of them, and checks them.

It does not go through the contract of arrays and loaders. A sample has the classes of its head, by
a threshold of its own, and labels of OOD sets, or none. To predict the classes again takes 80 % of
the time of the maximum and logsumexp of a map, and a sum for NaN 6 %: the counting finds a NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from mmengine.structures import BaseDataElement
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.misfits import Row, add_row, refuse
from mmcalib.predictions.image_predictions import IGNORED, ImagePredictions
from mmcalib.tensors import (
    SUM_TOLERANCE,
    at_least_single,
    check_finite,
    check_labels,
    check_probabilities,
    check_range,
    check_softmax_logits,
    on_float64_device,
)

Sample = Mapping | BaseDataElement
IGNORE_INDEX = 255  # the label that mmseg's data sets and heads ignore by default
BACKGROUND_NAME = 'background'  # the name of the class that is no object
SEVERAL_LABELS = 'for a head that predicts each class by a sigmoid, set several_labels=True'

add_row(
    'class',
    Row(
        'classes of a data set',
        "Check the dataset's classes, or the metric's ignore_index or ood_index",
        lambda misfit: not misfit.start_at_one,
        door='samples',
    ),
)
add_row(
    'sum',
    Row(
        'scores of sigmoids', f'give the softmax over all classes; {SEVERAL_LABELS}', door='samples'
    ),
)
add_row('one label', Row('several labels of a sample', SEVERAL_LABELS))
add_row(
    'size',
    Row(
        'size of a mask',
        'in the test pipeline LoadAnnotations must come after Resize, or AtInputSize after both',
    ),
)


def read_sample(
    sample: Sample,
    name: str,
    *,
    ignore_index: int = IGNORE_INDEX,
    ood_index: int | None = None,
    labelled: bool = True,
    several_labels: bool = False,
) -> ImagePredictions:
    """Return the predictions of a map, or of one classified image.

    Those of a segmentor stay on its device: logits, or the probability of class 1 of a binary head.
    They may be NaN, unless they are without labels: what counts them looks for it. Those of a
    classifier are probabilities on the CPU, in its own type of float. The predicted class is the
    toolbox's, by the threshold of its head.

    Args:
        sample: Evaluated data sample of mmpretrain or mmseg.
        name: Name of the sample in errors.
        ignore_index: Label of the pixels to leave out. Classifiers do not use it.
        ood_index: Label of OOD pixels, or of a classifier's OOD images beside negative labels;
            None to refuse both. The label of the s-th OOD set, -s in a classifier's samples,
            becomes K + s - 1.
        labelled: Whether to read labels.
        several_labels: Whether a classifier predicts each class by a sigmoid of its own, which a
            sample does not say. The predictions are then ``(1, 1, L)``.

    Raises:
        ValueError: For fields that are missing, maps of several sizes, labels out of range, and
            scores that are NaN or no probabilities.
    """
    if 'seg_logits' in sample:
        return read_map(
            sample, name, ignore_index=ignore_index, ood_index=ood_index, labelled=labelled
        )
    if several_labels:
        return read_several_labels(sample, name, labelled=labelled)
    return read_class(sample, name, ood_index=ood_index, labelled=labelled)


def with_logits(predictions: ImagePredictions, logits: Tensor) -> ImagePredictions:
    """Return the same predictions with the logits that their scores come from.

    Args:
        predictions: Predictions of one map or of classified images.
        logits: ``(N, K, *)`` output of the model before its softmax or sigmoid.

    Raises:
        UserError: If `logits` are NaN or infinite, or the scores of a classifier are not their
            softmax.
    """
    logits = at_least_single(logits.detach())
    check_softmax_logits(
        logits, f'logits of {predictions.name}', class_axis=1, labels=predictions.labels
    )
    if predictions.are_maps or predictions.several_labels:
        return replace(predictions, logits=logits.to(predictions.predicted.device))
    logits = logits.cpu()
    probs = predictions.probs.to(logits)
    if probs.shape != logits.shape or (probs - logits.softmax(1)).abs().max() > SUM_TOLERANCE:
        raise UserError(
            f"the scores of {predictions.name} are not the softmax of its head's output: with "
            'another activation, or logits that change after the head, no layer can take a scaling'
        )
    return replace(predictions, logits=logits, predicted=logits.argmax(dim=1))


def read_map(
    sample: Sample, name: str, *, ignore_index: int, ood_index: int | None, labelled: bool
) -> ImagePredictions:
    """Return the predictions of a segmented image, ``(1, K, H, W)``."""
    scores = on_float64_device(require_field(sample, 'seg_logits', name))
    predicted = read_plane(sample, 'pred_sem_seg', name).to(scores.device)
    labels = None
    if labelled:
        mask = read_mask(sample, name).to(scores.device)
        check_same_size(scores, predicted, mask, name)
        labels = mask_labels(mask, max(len(scores), 2), name, ignore_index, ood_index)
    is_binary = len(scores) == 1
    if is_binary or not labelled:
        check_softmax_logits(scores, f'seg_logits of {name}', class_axis=0)
    if is_binary:
        check_range(scores, f'seg_logits of {name}, of one class,')
    return ImagePredictions(
        predicted=predicted[None],
        probs=scores[None] if is_binary else None,
        logits=None if is_binary else scores[None],
        labels=labels,
        images=torch.zeros(1, dtype=torch.int64, device='cpu'),
        name=name,
    )


def mask_labels(
    mask: Tensor, num_classes: int, name: str, ignore_index: int, ood_index: int | None
) -> Tensor:
    """Return the labels ``(1, H, W)`` of a mask: -1 if ignored, K if out of distribution."""
    is_ignored = mask == ignore_index
    not_a_class = is_ignored
    labels = mask
    if ood_index is not None:
        is_ood = mask == ood_index
        not_a_class = is_ignored | is_ood
        labels = labels.masked_fill(is_ood, num_classes)
    # Filling takes a third of the time of selecting.
    check_labels(mask.masked_fill(not_a_class, 0), num_classes, name=name, door='samples')
    return labels.masked_fill(is_ignored, IGNORED)[None]


def read_class(
    sample: Sample, name: str, *, ood_index: int | None, labelled: bool
) -> ImagePredictions:
    """Return the predictions of an image by a softmax, ``(1, K)`` on the CPU."""
    scores = read_class_scores(sample, name).cpu()
    field_name = f'pred_score of {name}'
    check_finite(scores, field_name)
    check_probabilities(at_least_single(scores)[:, None], field_name, door='samples')
    probs = scores[None].clamp(max=1)
    return ImagePredictions(
        predicted=probs.argmax(dim=1),
        probs=probs,
        labels=class_label(sample, name, len(scores), ood_index) if labelled else None,
        images=torch.zeros(1, dtype=torch.int64, device='cpu'),
        name=name,
    )


def class_label(sample: Sample, name: str, num_classes: int, ood_index: int | None) -> Tensor:
    """Return the ``(1,)`` int64 label of a classified image on the CPU; K and more if it is OOD."""
    label = require_field(sample, 'gt_label', name)
    if label.numel() != 1:
        fact = f'{name} needs one gt_label, the class of a softmax; got {label.tolist()}'
        refuse('one label', fact)
    label = label.long().reshape(1).cpu()
    if ood_index is not None and (label < 0 or label == ood_index):
        ood_set = (-label).clamp(min=1)
        return num_classes - 1 + ood_set
    check_labels(label, num_classes, name=name, door='samples')
    return label


def read_several_labels(sample: Sample, name: str, *, labelled: bool) -> ImagePredictions:
    """Return the predictions of an image by a sigmoid for each of L labels, ``(1, 1, L)``."""
    scores = read_class_scores(sample, name).cpu()
    check_finite(scores, f'pred_score of {name}')
    check_range(scores, f'pred_score of {name}')
    present = read_field(sample, 'pred_label')  # by the head's threshold, or its top labels
    if present is None:
        present = (scores > 0.5).nonzero()[:, 0]
    return ImagePredictions(
        predicted=one_hot(present, len(scores))[None],
        probs=scores[None, None],
        labels=label_set(sample, name, len(scores))[None] if labelled else None,
        images=torch.zeros(1, dtype=torch.int64, device='cpu'),
        several_labels=True,
        name=name,
    )


def label_set(sample: Sample, name: str, num_labels: int) -> Tensor:
    """Return the ``(L,)`` int64 labels of an image: 1 if present, -1 if not to be judged, else 0.

    They are those of ``gt_score``, ``(L,)`` of 0, 1 and -1, or the present labels of ``gt_label``.
    """
    scores = read_field(sample, 'gt_score')
    if scores is None:
        present = require_field(sample, 'gt_label', name).cpu().long()
        check_labels(present, num_labels, name=name, door='samples')
        return one_hot(present, num_labels)
    scores = scores.cpu()
    return torch.where(scores < 0, IGNORED, (scores > 0.5).long())


def one_hot(present: Tensor, num_labels: int) -> Tensor:
    """Return ``(L,)`` int64 on the CPU, 1 at the indices that are present."""
    labels = torch.zeros(num_labels, dtype=torch.int64, device='cpu')
    return labels.index_fill(0, present.cpu().long(), 1)


def read_field(sample: Sample, key: str) -> Tensor | None:
    """Return the tensor of a field, of pixels or not; None if there is none."""
    value = sample.get(key)
    if isinstance(value, Mapping):
        return value['data']
    if isinstance(value, BaseDataElement):
        return value.data
    return value


def require_field(sample: Sample, key: str, name: str, hint: str = '') -> Tensor:
    """Return the tensor of a field; raise a UserError if there is none."""
    value = read_field(sample, key)
    if value is None:
        raise UserError(f'{name} has no {key}, only {sorted(sample.keys())}{hint}')
    return value.detach()


def read_class_scores(sample: Sample, name: str) -> Tensor:
    """Return the ``(K,)`` scores of a classifier's sample, unchecked."""
    hint = '; a classifier has pred_score (mmpretrain), a segmentor seg_logits (mmseg)'
    return require_field(sample, 'pred_score', name, hint)


def read_plane(sample: Sample, key: str, name: str) -> Tensor:
    """Return a field of pixels, ``(H, W)`` int64."""
    plane = require_field(sample, key, name)
    return plane.reshape(plane.shape[-2:]).long()  # mmseg stores a leading 1, or none


def read_mask(sample: Sample, name: str) -> Tensor:
    """Return the label map of a segmentor's sample, ``(H, W)`` int64."""
    hint = ': its pipeline needs LoadAnnotations'
    check_mask(require_field(sample, 'gt_sem_seg', name, hint), sample.get('seg_map_path') or name)
    return read_plane(sample, 'gt_sem_seg', name)


def sample_name(sample: Sample, index: int | None = None) -> str:
    """Return the name of a sample in errors: its file, else its index in the data set."""
    return str(sample.get('img_path') or f'sample {sample.get("sample_idx", index)}')


def background_index(classes: Sequence[str] | None) -> int | None:
    """Return the index of the class that is called background, None if there is none."""
    names = [str(name).lower() for name in classes or ()]
    return names.index(BACKGROUND_NAME) if BACKGROUND_NAME in names else None


def check_mask(mask: Tensor, name: str) -> None:
    """Raise a UserError for a mask that has not one class for each pixel, such as one in colours.

    It prevents lost hours: mmseg packs masks of any shape, and an operation later fails, which
    names no file.

    Args:
        mask: ``(1, H, W)`` or ``(H, W)`` as mmseg packs it.
        name: The file of the mask.
    """
    height_and_width = mask.shape[-2:]
    if mask.ndim < 2 or mask.numel() != height_and_width.numel():
        colours = ', one value for each colour' if mask.shape[-1] in (3, 4) else ''
        raise UserError(
            f'the mask {name} has the shape {tuple(mask.shape)}{colours}, where the number of one '
            'class is needed for each pixel: convert the colours to classes, 0, 1, … or 255, and '
            'save them as a grey PNG'
        )


def check_same_size(scores: Tensor, predicted: Tensor, labels: Tensor, name: str) -> None:
    """Refuse scores or predicted classes of another size than the labels."""
    for values in (predicted, scores):
        if values.shape[-2:] != labels.shape:
            fact = (
                f'the prediction of {name} has the size {tuple(values.shape[-2:])}, gt_sem_seg '
                f'{tuple(labels.shape)}'
            )
            refuse('size', fact)
