"""Calibrating a trained model: fitting a scaling to its logits, putting it into the model."""

from typing import TYPE_CHECKING

from mmcalib.posthoc.binary_scalers import BetaScaler, PlattScaler
from mmcalib.posthoc.class_conditional_scaler import ClassConditionalScaler
from mmcalib.posthoc.ensemble_temperature_scaler import EnsembleTemperatureScaler
from mmcalib.posthoc.isotonic_scaler import IsotonicScaler
from mmcalib.posthoc.logit_scaler import LogitScaler, NotFittedError
from mmcalib.posthoc.methods import SCALERS
from mmcalib.posthoc.predicted_class_temperature_scaler import PredictedClassTemperatureScaler
from mmcalib.posthoc.scaler_file import load_scaler
from mmcalib.posthoc.temperature_scaler import TemperatureScaler
from mmcalib.posthoc.vector_and_matrix_scalers import MatrixScaler, VectorScaler
from mmcalib.registration import late_names

if TYPE_CHECKING:
    from mmcalib.posthoc.attached_model import calibrated_model
else:
    __getattr__ = late_names(__name__, {'calibrated_model': 'mmcalib.posthoc.attached_model'})

__all__ = [
    'SCALERS',
    'BetaScaler',
    'ClassConditionalScaler',
    'EnsembleTemperatureScaler',
    'IsotonicScaler',
    'LogitScaler',
    'MatrixScaler',
    'NotFittedError',
    'PlattScaler',
    'PredictedClassTemperatureScaler',
    'TemperatureScaler',
    'VectorScaler',
    'calibrated_model',
    'load_scaler',
]


def __dir__() -> list[str]:
    return __all__
