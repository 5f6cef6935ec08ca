"""The fields of a toolbox's data sample, checked."""

from __future__ import annotations

from collections.abc import Mapping

from mmengine.structures import BaseDataElement
from torch import Tensor

from mmcalib.checks import at_least_single

Sample = Mapping | BaseDataElement

# How far a probability may lie above 1, and how far the sum of a half-precision softmax from 1.
TOLERANCE = 1e-6
SUM_TOLERANCE = 1e-2


def tensor_of(sample: Sample, key: str) -> Tensor | None:
    """Return the tensor of a field, of pixels or not; None if there is none."""
    found = sample.get(key)
    if isinstance(found, Mapping):
        return found['data']
    return found.data if isinstance(found, BaseDataElement) else found


def name_of(sample: Sample, place: int) -> str:
    """Return the name that errors call a sample by: its file, else its place in the data set."""
    return str(sample.get('img_path') or f'sample {sample.get("sample_idx", place)}')


def map_size(sample: Sample) -> tuple[int, int] | None:
    """Return (H, W) of an evaluated data sample of mmseg, None for another toolbox's."""
    logits = tensor_of(sample, 'seg_logits')
    return None if logits is None else tuple(logits.shape[-2:])


def class_scores(sample: Sample, name: str) -> Tensor:
    """Return the ``(K,)`` probabilities of a classifier's sample, unchecked.

    Raises:
        ValueError: If it has none.
    """
    scores = tensor_of(sample, 'pred_score')
    if scores is None:
        raise ValueError(
            f'{name} has neither pred_score (mmpretrain) nor seg_logits (mmseg), so its confidence '
            f'is unknown; it has {sorted(sample.keys())}'
        )
    return scores.detach()


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
    label = tensor_of(sample, 'gt_label')
    if label is None or label.numel() != 1:
        raise ValueError(
            f'{name} needs one gt_label; got '
            f'{"none" if label is None else label.tolist()}. Calibration errors are defined for '
            'single-label classification'
        )
    return label.long().reshape(1)


def predicted_map(sample: Sample, name: str) -> Tensor:
    """Return the predicted label map of an mmseg sample, ``(H, W)``."""
    data = tensor_of(sample, 'pred_sem_seg')
    if data is None:
        raise ValueError(
            f'{name} has no pred_sem_seg, only {sorted(sample.keys())}: the predicted class is '
            'unknown'
        )
    return data.reshape(data.shape[-2:])  # mmseg stores a leading 1, or none


def label_maps(sample: Sample, name: str) -> tuple[Tensor, Tensor]:
    """Return the predicted and the true label map of an mmseg sample, both ``(H, W)``."""
    predicted, label = predicted_map(sample, name), tensor_of(sample, 'gt_sem_seg')
    if label is None:
        raise ValueError(f'{name} has no gt_sem_seg: its pipeline needs LoadAnnotations')
    return predicted, label.reshape(label.shape[-2:])


def check_size(name: str, key: str, size: tuple[int, ...], label: Tensor) -> None:
    if tuple(label.shape) != size:
        raise ValueError(
            f'{key} of {name} have the size {size}, gt_sem_seg {tuple(label.shape)}: in the test '
            'pipeline LoadAnnotations must come after Resize, or AtInputSize after both'
        )


def check_finite(scores: Tensor, name: str) -> None:
    # One sum is several times cheaper than a test per value; it is not finite if any value is not.
    if not scores.sum().isfinite():
        wrong = int((~scores.isfinite()).sum())
        if wrong:
            raise ValueError(
                f'{name} has {wrong} NaN or infinite values out of {scores.numel()}: the model has '
                'diverged, or its input is broken'
            )


def check_range(values: Tensor, name: str) -> None:
    """Raise a ValueError for values that are not from 0 to 1."""
    if not values.numel():
        return
    lowest, highest = (end.item() for end in values.aminmax())
    if lowest >= 0 and highest <= 1 + TOLERANCE:  # not so of NaN
        return
    outside = ~((values >= 0) & (values <= 1 + TOLERANCE))
    remedy = 'leave out what has no prediction'
    if lowest == lowest:
        percent = 'divide percentages by 100; ' if lowest >= 0 and 1.5 < highest <= 100 else ''
        remedy = f'{percent}of logits, take the softmax first'
    raise ValueError(
        f'{name} has {int(outside.sum())} of {values.numel()} values outside [0, 1], such as '
        f'{values[outside][0].item():.7g}: {remedy}'
    )


def check_probabilities(probs: Tensor, name: str) -> None:
    """Raise a ValueError for ``(K, *)`` values that are no probabilities of K classes."""
    check_range(probs, name)
    total = probs.sum(dim=0)
    wrong = (total - 1).abs() > SUM_TOLERANCE
    if wrong.any():
        raise ValueError(
            f'{name} has {int(wrong.sum())} of {total.numel()} rows that do not sum to 1, such as '
            f'{total[wrong][0].item():.7g}: they must be the softmax over all classes'
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
            f'pred_sem_seg of {name} is not the argmax of its seg_logits at {unexplained} pixels. '
            'Under test-time augmentation mmseg keeps only the logits of the last augmentation, '
            'which are not those of the prediction: test without it'
        )
