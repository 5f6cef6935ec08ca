"""Probabilities out of a toolbox's data sample, and other ones into it."""

from __future__ import annotations

import torch
from mmengine.structures import BaseDataElement, PixelData
from torch import Tensor

from mmcalib.argument_checks import at_least_single

# How far from 1 the sum of a half-precision softmax may be.
SUM_TOLERANCE = 1e-2


def probabilities_in(sample: BaseDataElement) -> Tensor:
    """Return the probabilities that a sample's scores stand for, in float32 or float64.

    Returns:
        ``(K,)`` of mmpretrain's ``pred_score``; ``(K, H, W)``, the softmax of mmseg's
        ``seg_logits``; ``(1, H, W)`` of a binary head of mmseg, whose ``seg_logits`` are already
        the probability of class 1.

    Raises:
        ValueError: If the sample has neither.
    """
    if 'seg_logits' in sample:
        logits = at_least_single(sample.seg_logits.data)
        return logits if len(logits) == 1 else logits.softmax(dim=0)
    if 'pred_score' in sample:
        return at_least_single(sample.pred_score)
    raise ValueError(
        'a prediction has neither seg_logits (mmseg) nor pred_score (mmpretrain), so there are no '
        f'probabilities to average; it has {sorted(sample.keys())}'
    )


def check_probabilities(probs: Tensor) -> None:
    """Raise a ValueError for what are no probabilities of all classes, or of class 1 alone."""
    check_finite(probs)
    low, high = (end.item() for end in probs.aminmax())
    off = (probs.sum(dim=0) - 1).abs().max().item() if len(probs) > 1 else 0.0
    if low < 0 or high > 1 + SUM_TOLERANCE or off > SUM_TOLERANCE:
        raise ValueError(
            f'scores from {low:.4g} to {high:.4g}, whose sum is off 1 by up to {off:.4g}: they are '
            'not the softmax over all classes'
        )


def check_finite(probs: Tensor) -> None:
    """Raise a ValueError for probabilities that are NaN or infinite."""
    # Of at most 1 each, so the sum is finite if they are; cheap enough for every prediction.
    if not probs.sum().isfinite():
        raise ValueError('NaN or infinite scores: it has diverged, or its input is broken')


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
        _put_logits(sample, _log(probs))


def logits_in(sample: BaseDataElement) -> Tensor:
    """Return logits whose softmax, or sigmoid of a binary head, are a sample's probabilities.

    Of the same shape; in a binary head's, what is rounded to 1 counts as a quarter of its type's
    resolution below.
    """
    if 'seg_logits' not in sample:
        return _log(probabilities_in(sample))
    logits = at_least_single(sample.seg_logits.data)
    if len(logits) > 1:
        return logits
    rest = (1 - logits).clamp(min=torch.finfo(logits.dtype).eps / 4)
    return _log(logits) - rest.log()


def temper(sample: BaseDataElement, temperature: float, *, threshold: float = 0.5) -> None:
    """Divide the logits behind a sample's probabilities by a temperature."""
    logits = logits_in(sample) / temperature
    if 'seg_logits' not in sample:
        put_probabilities(sample, logits.softmax(dim=0))
    elif len(logits) == 1:
        put_probabilities(sample, logits.sigmoid(), threshold=threshold)
    else:
        _put_logits(sample, logits)


def put_disagreement(sample: BaseDataElement, information: Tensor, variance: Tensor) -> None:
    """Set ``mutual_information`` and ``variance`` of a sample with scores.

    Numbers of a classifier's; of a segmentor's, maps ``(1, H, W)`` in ``disagreement``.
    """
    if 'seg_logits' in sample:
        maps = PixelData(mutual_information=information[None], variance=variance[None])
        sample.set_data({'disagreement': maps})
    else:
        sample.set_field(information, 'mutual_information')
        sample.set_field(variance, 'variance')


def _log(probs: Tensor) -> Tensor:
    return probs.clamp(min=torch.finfo(probs.dtype).tiny).log()


def _put_logits(sample: BaseDataElement, logits: Tensor) -> None:
    # Of the logits, not of the probabilities: two of these may have the same logarithm.
    _put_maps(sample, logits, logits.argmax(dim=0, keepdim=True))


def _put_maps(sample: BaseDataElement, scores: Tensor, predicted: Tensor) -> None:
    sample.set_data(
        {'seg_logits': PixelData(data=scores), 'pred_sem_seg': PixelData(data=predicted)}
    )
