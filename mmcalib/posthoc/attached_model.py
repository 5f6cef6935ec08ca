"""A model of either toolbox with a calibration attached to what it predicts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from mmengine.registry import MODELS
from mmengine.structures import BaseDataElement
from torch import nn

from mmcalib.posthoc.attached_scaling import AttachedScaling
from mmcalib.posthoc.predicted_samples import calibrate_sample


@MODELS.register_module(name='CalibratedModel')
def calibrated_model(*, calibrates: str, calibration: Mapping, **model: Any) -> nn.Module:
    """Build a model whose predictions are calibrated, in place of the uncalibrated one.

    It is an object of the model's own class, with all its attributes and keys in the checkpoint;
    those of the calibration begin with ``calibration.``. Data samples have calibrated scores:
    mmpretrain's ``pred_score``, mmseg's ``seg_logits``. Losses and ``mode='tensor'`` are those of
    the model itself: ``model.calibration(logits)`` calibrates logits ``(N, K, …)``.

    A config needs three lines::

        custom_imports = dict(imports=['mmcalib'])
        model = dict(type='CalibratedModel', calibrates='EncoderDecoder',
                     calibration=dict(method='ets'))

    Args:
        calibrates: Type of the uncalibrated model.
        calibration: ``method`` and options of the scaling, see
            :class:`~mmcalib.posthoc.attached_scaling.AttachedScaling`.
        model: The other options of the model.
    """
    return attach(MODELS.build({'type': calibrates, **model}), AttachedScaling(**calibration))


def attach(model: nn.Module, calibration: AttachedScaling) -> nn.Module:
    """Have a model calibrate its predictions, and return it."""
    model.__class__ = _calibrated(type(model))
    model.calibration = calibration
    return model


class _CalibratedPredictions:
    def predict(self, *args: Any, **kwargs: Any) -> list[BaseDataElement]:
        samples = super().predict(*args, **kwargs)
        for sample in samples:
            calibrate_sample(self, sample, self.calibration)
        return samples


@cache
def _calibrated(kind: type) -> type:
    return type(f'Calibrated{kind.__name__}', (_CalibratedPredictions, kind), {})
