"""The fields of a toolbox's data sample, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmengine.structures import BaseDataElement
from torch import Tensor

from mmcalib.checks import at_least_single, check_finite, check_probabilities

Sample = Mapping | BaseDataElement

BACKGROUND = 'background'  # the name of the class that is no object


def tensor_of(sample: Sample, key: str) -> Tensor | None:
    """Return the tensor of a field, of pixels or not; None if there is none."""
    found = sample.get(key)
    if isinstance(found, Mapping):
        return found['data']
    return found.data if isinstance(found, BaseDataElement) else found


def name_of(sample: Sample, place: int) -> str:
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
