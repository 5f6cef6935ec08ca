"""Calibrating a trained model: fitting a scaling to its logits, folding it into its last layer."""

from mmcalib.posthoc.logit_scaler import LogitScaler, NotFittedError
from mmcalib.posthoc.temperature_scaler import TemperatureScaler
from mmcalib.posthoc.vector_and_matrix_scalers import MatrixScaler, VectorScaler

SCALERS = {'temperature': TemperatureScaler, 'vector': VectorScaler, 'matrix': MatrixScaler}

__all__ = [
    'SCALERS',
    'LogitScaler',
    'MatrixScaler',
    'NotFittedError',
    'TemperatureScaler',
    'VectorScaler',
]
