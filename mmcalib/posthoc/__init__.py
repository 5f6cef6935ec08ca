"""Calibrating a trained model: fitting a scaling to its logits, putting it into the model."""

from mmcalib.posthoc.boundary_temperature_scaler import BoundaryTemperatureScaler
from mmcalib.posthoc.calibrated_model import calibrated_model
from mmcalib.posthoc.class_conditional_scaler import ClassConditionalScaler
from mmcalib.posthoc.local_temperature_scaler import LocalTemperatureScaler
from mmcalib.posthoc.logit_scaler import LogitScaler, NotFittedError
from mmcalib.posthoc.methods import SCALERS
from mmcalib.posthoc.predicted_class_temperature_scaler import PredictedClassTemperatureScaler
from mmcalib.posthoc.temperature_scaler import TemperatureScaler
from mmcalib.posthoc.vector_and_matrix_scalers import MatrixScaler, VectorScaler

__all__ = [
    'SCALERS',
    'BoundaryTemperatureScaler',
    'ClassConditionalScaler',
    'LocalTemperatureScaler',
    'LogitScaler',
    'MatrixScaler',
    'NotFittedError',
    'PredictedClassTemperatureScaler',
    'TemperatureScaler',
    'VectorScaler',
    'calibrated_model',
]
