"""Reading and replacing what a model has predicted, by the kind of its head."""

from __future__ import annotations

from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from mmcalib.models.predicting_head import has_several_labels, head_of, returns_scores
from mmcalib.posthoc.attached_scaling import AttachedScaling
from mmcalib.samples.multi_label import as_binary_map
from mmcalib.samples.writing import logits_in, put_logits


def evaluated_sample(model: nn.Module, sample: BaseDataElement) -> dict:
    """Return a data sample as metrics read it: one of several labels as a binary map of them."""
    content = sample.to_dict()
    return as_binary_map(content) if has_several_labels(model) else content


def logits_behind(model: nn.Module, sample: BaseDataElement, *, calibrated: bool = False) -> Tensor:
    """Return the logits that a data sample's scores stand for.

    Args:
        model: The model.
        sample: As it predicted it.
        calibrated: Whether an attached calibration has replaced the scores, which makes logits of
            the scores of masks.

    Returns:
        ``(K,)`` of a classifier, ``(1, 1, K)`` of one with several labels, ``(K, H, W)`` of a
        segmentor; see :func:`~mmcalib.samples.writing.logits_in`.
    """
    of_scores = returns_scores(model) and not calibrated
    return logits_in(evaluated_sample(model, sample), of_scores=of_scores)


def calibrate_sample(
    model: nn.Module, sample: BaseDataElement, calibration: AttachedScaling
) -> None:
    """Replace the scores of a data sample that a model has predicted by calibrated ones."""
    logits = calibration(logits_behind(model, sample)[None])[0]
    if has_several_labels(model):  # by the head's own threshold, or its number of labels
        head_of(model)._get_predictions(logits.reshape(1, -1), [sample])
        return
    put_logits(
        sample,
        logits,
        threshold=getattr(head_of(model), 'threshold', 0.5),
        keep_class=calibration.scaler.keeps_argmax,
    )
