"""Scores of data samples as probabilities or logits, and the writer of other scores."""

from __future__ import annotations

import numpy as np
import torch
from mmengine.structures import BaseDataElement, PixelData
from torch import Tensor

from mmcalib.openmmlab.samples import Sample, read_class_scores, read_field
from mmcalib.tensors import at_least_single, smallest_probability


def probabilities_in(sample: Sample) -> Tensor:
    """Return the probabilities of a sample's scores, in float32 or float64.

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

    Logits of a classifier are the logarithms of its probabilities, so the lowest is that of the
    smallest probability of its type: -87 in float32. A binary head's probability that is rounded to
    1 counts as a quarter of its type's resolution below.

    Args:
        sample: Data sample of mmpretrain or mmseg.
        of_scores: Whether mmseg's ``seg_logits`` are scores of at least 0 that need not sum to 1,
            so that logits are their logarithms.
    """
    if 'seg_logits' not in sample:
        scores = read_class_scores(sample, 'a prediction')
        return at_least_single(scores).clamp(min=smallest_probability(scores.dtype)).log()
    logits = at_least_single(read_field(sample, 'seg_logits').detach())
    if len(logits) > 1:
        return _log(logits) if of_scores else logits
    return log_odds(logits)


def log_odds(probs: Tensor) -> Tensor:
    """Return the logits whose sigmoids are probabilities.

    A probability that is rounded to 1 counts as a quarter of its type's resolution below.
    """
    one_minus_probs = (1 - probs).clamp(min=torch.finfo(probs.dtype).eps / 4)
    return _log(probs) - one_minus_probs.log()


def put_probabilities(sample: BaseDataElement, probs: Tensor, *, threshold: float = 0.5) -> None:
    """Set a sample's scores, and the class that they predict, to those of probabilities.

    ``seg_logits`` of K > 1 classes are their logarithms. A probability of 0 counts as the smallest
    normal number of its type, whose logarithm is -87 in float32.

    Args:
        sample: Data sample of mmpretrain or mmseg, with scores.
        probs: Probabilities in the shape of :func:`probabilities_in`.
        threshold: Probability above which a binary head of mmseg predicts its class.
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
        sample: Data sample of mmpretrain or mmseg, with scores.
        logits: Logits in the shape of :func:`logits_in`.
        threshold: Probability above which a binary head of mmseg predicts its class.
        keep_class: Whether the predicted class stays, however close others are after rounding. A
            binary head of mmseg predicts by its threshold in any case.
    """
    if 'seg_logits' in sample and len(logits) == 1:
        put_probabilities(sample, logits.sigmoid(), threshold=threshold)
    elif 'seg_logits' in sample:
        # Two logits may differ where their probabilities are rounded to the same number.
        highest = logits.argmax(dim=0, keepdim=True)
        _put_maps(sample, logits, sample.pred_sem_seg.data if keep_class else highest)
    else:
        predicted = sample.pred_label
        put_probabilities(sample, logits.softmax(dim=0))
        if keep_class:
            sample.set_pred_label(predicted)


def put_disagreement(sample: BaseDataElement, information: Tensor, predictions: Tensor) -> None:
    """Set the ``mutual_information`` of a sample, and a segmentor's predictions.

    Args:
        sample: Data sample of mmpretrain or mmseg, with scores. That of mmseg gets both in
            ``disagreement``.
        information: Mutual information of a classified image, or ``(H, W)`` of a segmented one.
        predictions: ``(N, H, W)`` classes of the pixels by each of N predictions.
    """
    if 'seg_logits' in sample:
        maps = PixelData(mutual_information=information[None], predictions=predictions)
        sample.set_data({'disagreement': maps})
    else:
        sample.set_field(information, 'mutual_information')


def disagreement_in(sample: Sample) -> dict[str, np.ndarray]:
    """Return the arrays of :func:`put_disagreement`; no arrays for a single prediction."""
    values = sample.get('disagreement', sample)
    keys = [key for key in ('mutual_information', 'predictions') if key in values]
    arrays = {key: values.get(key).cpu().numpy() for key in keys}
    if 'predictions' in arrays:
        arrays['mutual_information'] = arrays['mutual_information'][0]
    return arrays


def _log(probs: Tensor) -> Tensor:
    """Return finite logarithms of probabilities."""
    return probs.clamp(min=torch.finfo(probs.dtype).tiny).log()


def _put_maps(sample: BaseDataElement, scores: Tensor, predicted: Tensor) -> None:
    """Set the maps of a segmentor's sample."""
    sample.set_data(
        {'seg_logits': PixelData(data=scores), 'pred_sem_seg': PixelData(data=predicted)}
    )
