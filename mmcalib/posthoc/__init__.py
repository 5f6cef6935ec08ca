"""Calibrating a trained model: fitting a scaling to its logits, folding it into its last layer."""

from mmcalib.posthoc.scalers import (
    SCALERS,
    LogitScaler,
    MatrixScaler,
    TemperatureScaler,
    VectorScaler,
)

__all__ = ['SCALERS', 'LogitScaler', 'MatrixScaler', 'TemperatureScaler', 'VectorScaler']
