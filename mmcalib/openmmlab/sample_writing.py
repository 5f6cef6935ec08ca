"""The probabilities that a data sample stands for, and other ones put into it."""

from __future__ import annotations

import numpy as np
import torch
from mmengine.structures import BaseDataElement, PixelData
from torch import Tensor

from mmcalib.openmmlab.samples import Sample, read_class_scores, read_field
from mmcalib.tensors import at_least_single, smallest_probability


def probabilities_in(sample: Sample) -> Tensor:
    """Return the probabilities that a sample's scores stand for, in float32 or float64.

    Returns:
        ``(K,)`` of mmpretrain's ``pred_score``; ``(K, H, W)``, the softmax of mmseg's
        ``seg_logits``; ``(1, H, W)`` of a binary head of mmseg, whose ``seg_logits`` are already
        the probability of class 1.

    Raises:
        ValueError: If the sample has neither.
    """
    if 'seg_logits' not in sample:
        return at_least_single(read_class_scores(sample, 'a prediction'))
    logits = at_least_single(read_field(sample, 'seg_logits').detach())
    return logits if len(logits) == 1 else logits.softmax(dim=0)


def logits_in(sample: Sample, *, of_scores: bool = False) -> Tensor:
    """Return logits whose softmax, or sigmoid of a binary head, are a sample's probabilities.

    With `of_scores`, mmseg's ``seg_logits`` are scores of at least 0 that need not sum to 1, and
    the logits are their logarithms.

    Those of a classifier are the logarithms of its probabilities, so that none is further below 0
    than the least probability of its type can tell: 87 nats in float32. In a binary head's, what is
    rounded to 1 counts as a quarter of its type's resolution below.
    """
    if 'seg_logits' not in sample:
        scores = read_class_scores(sample, 'a prediction')
        return at_least_single(scores).clamp(min=smallest_probability(scores.dtype)).log()
    logits = at_least_single(read_field(sample, 'seg_logits').detach())
    if len(logits) > 1:
        return _log(logits) if of_scores else logits
    rest = (1 - logits).clamp(min=torch.finfo(logits.dtype).eps / 4)
    return _log(logits) - rest.log()


def put_probabilities(sample: BaseDataElement, probs: Tensor, *, threshold: float = 0.5) -> None:
    """Set a sample's scores, and the class that they predict, to those of probabilities.

    ``seg_logits`` of K > 1 classes are their logarithms, with what has been rounded to 0 at the
    least normal number of its type, 87 nats below 1 in float32.

    Args:
        sample: Of mmpretrain or mmseg, with scores of its own.
        probs: As :func:`probabilities_in` returns them.
        threshold: Above which probability a binary head of mmseg predicts its class.
    """
    if 'seg_logits' not in sample:
        sample.set_pred_score(probs).set_pred_label(probs.argmax(dim=0, keepdim=True))
    elif len(probs) == 1:
        _put_maps(sample, probs, (probs > threshold).to(probs))
    else:
        put_logits(sample, _log(probs))


def put_logits(
    sample: BaseDataElement, logits: Tensor, *, threshold: float = 0.5, keep_class: bool = False
) -> None:
    """Set a sample's scores, and the class that they predict, to those of logits.

    Args:
        sample: As for :func:`put_probabilities`.
        logits: As :func:`logits_in` returns them.
        threshold: As for :func:`put_probabilities`.
        keep_class: Whether the predicted class stays, however close others are after rounding. A
            binary head of mmseg predicts by its threshold in any case.
    """
    if 'seg_logits' in sample and len(logits) == 1:
        put_probabilities(sample, logits.sigmoid(), threshold=threshold)
    elif 'seg_logits' in sample:
        # Of the logits, not of the probabilities: two of these may have the same logarithm.
        highest = logits.argmax(dim=0, keepdim=True)
        _put_maps(sample, logits, sample.pred_sem_seg.data if keep_class else highest)
    else:
        predicted = sample.pred_label
        put_probabilities(sample, logits.softmax(dim=0))
        if keep_class:
            sample.set_pred_label(predicted)


def put_disagreement(sample: BaseDataElement, information: Tensor, predictions: Tensor) -> None:
    """Set the ``mutual_information`` of a sample with scores.

    A number of a classifier's; of a segmentor's, a map ``(1, H, W)`` in ``disagreement``, beside
    the classes that each of the N predictions gives the pixels, ``predictions`` ``(N, H, W)``.
    """
    if 'seg_logits' in sample:
        maps = PixelData(mutual_information=information[None], predictions=predictions)
        sample.set_data({'disagreement': maps})
    else:
        sample.set_field(information, 'mutual_information')


def disagreement_in(sample: Sample) -> dict[str, np.ndarray]:
    """Return what :func:`put_disagreement` has put, as arrays; nothing of a single prediction."""
    values = sample.get('disagreement', sample)
    keys = [key for key in ('mutual_information', 'predictions') if key in values]
    arrays = {key: values.get(key).cpu().numpy() for key in keys}
    if 'predictions' in arrays:
        arrays['mutual_information'] = arrays['mutual_information'][0]
    return arrays


def _log(probs: Tensor) -> Tensor:
    return probs.clamp(min=torch.finfo(probs.dtype).tiny).log()


def _put_maps(sample: BaseDataElement, scores: Tensor, predicted: Tensor) -> None:
    maps = dict(seg_logits=scores, pred_sem_seg=predicted)
    sample.set_data({key: PixelData(data=data) for key, data in maps.items()})
