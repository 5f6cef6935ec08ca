"""A toolbox's model with a scaling attached, which calibrates the data samples that it predicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mmengine.registry import MODELS
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from mmcalib.openmmlab.heads import find_head, has_several_labels, returns_scores
from mmcalib.openmmlab.sample_writing import log_odds, logits_in, put_logits
from mmcalib.tensors import at_least_single

if TYPE_CHECKING:
    from mmcalib.posthoc.attached import AttachedScaling


@MODELS.register_module(name='CalibratedModel')
def calibrated_model(*, calibrates: str, calibration: Mapping, **model: Any) -> nn.Module:
    """Build a model whose predictions are calibrated, in place of the uncalibrated one.

    It is an object of the model's own class, with all its attributes and keys in the checkpoint;
    those of the calibration begin with ``calibration.``. Data samples have calibrated scores:
    mmpretrain's ``pred_score``, mmseg's ``seg_logits``. Losses and ``mode='tensor'`` are those of
    the model itself: ``model.calibration(logits)`` calibrates logits ``(N, K, *)``.

    A config needs three lines::

        custom_imports = dict(imports=['mmcalib'])
        model = dict(type='CalibratedModel', calibrates='EncoderDecoder',
                     calibration=dict(method='ets'))

    Args:
        calibrates: Type of the uncalibrated model.
        calibration: Options of :func:`~mmcalib.posthoc.attached.build_scaling`: ``method``,
            ``labels`` for a scaling of each label, and those of the scaler.
        model: The other options of the model.
    """
    from mmcalib.posthoc.attached import build_scaling  # scikit-learn takes 0.8 s to import

    return attach(MODELS.build({'type': calibrates, **model}), build_scaling(**calibration))


def attach(model: nn.Module, calibration: AttachedScaling) -> nn.Module:
    """Have a model calibrate its predictions, and return it."""
    kind = type(model)
    model.__class__ = type(f'Calibrated{kind.__name__}', (_CalibratedPredictions, kind), {})
    model.calibration = calibration
    return model


def is_calibrated(model: nn.Module) -> bool:
    """Return whether a model has a scaling attached."""
    return isinstance(model, _CalibratedPredictions)


class _CalibratedPredictions:
    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: Any) -> None:
        # Models of timm and Hugging Face rename all keys, and the scaling's are not theirs.
        names = [name for name in state_dict if name.startswith(f'{prefix}calibration.')]
        scaling_state = {name: state_dict.pop(name) for name in names}
        super()._load_from_state_dict(state_dict, prefix, *args)
        state_dict.update(scaling_state)

    def predict(self, *args: Any, **kwargs: Any) -> list[BaseDataElement]:
        """Return the data samples of a batch with calibrated scores."""
        samples = super().predict(*args, **kwargs)
        for sample in samples:
            calibrate_sample(self, sample)
        return samples


def logits_behind(
    model: nn.Module, sample: BaseDataElement, *, is_calibrated_sample: bool = False
) -> Tensor:
    """Return the logits that the scores of a data sample stand for.

    Args:
        model: The model.
        sample: The data sample that it has predicted.
        is_calibrated_sample: Whether an attached scaling has replaced the scores. It makes logits
            of the scores of a head that classifies masks.

    Returns:
        ``(K,)`` of a classifier, before a softmax or before sigmoids; ``(K, H, W)`` of a segmentor.
        See :func:`~mmcalib.openmmlab.sample_writing.logits_in`.
    """
    if has_several_labels(model):
        return log_odds(at_least_single(sample.pred_score))
    return logits_in(sample, of_scores=returns_scores(model) and not is_calibrated_sample)


def calibrate_sample(model: nn.Module, sample: BaseDataElement) -> None:
    """Replace the scores of a data sample that a model has predicted by calibrated ones."""
    scaling = model.calibration
    logits = scaling(logits_behind(model, sample)[None])[0]
    if has_several_labels(model):  # by the head's own threshold, or its number of labels
        find_head(model)._get_predictions(logits.reshape(1, -1), [sample])
        return
    threshold = getattr(find_head(model), 'threshold', 0.5)
    put_logits(sample, logits, threshold=threshold, keep_class=scaling.scaler.keeps_argmax)
