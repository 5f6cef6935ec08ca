"""Calibrating a trained model: fitting a scaling to its logits, folding it into its last layer."""

from mmcalib.posthoc.base import LogitScaler
from mmcalib.posthoc.classwise import MatrixScaler, VectorScaler
from mmcalib.posthoc.temperature import TemperatureScaler

SCALERS = {'temperature': TemperatureScaler, 'vector': VectorScaler, 'matrix': MatrixScaler}

__all__ = ['SCALERS', 'LogitScaler', 'MatrixScaler', 'TemperatureScaler', 'VectorScaler']
