"""Losses that calibrate while they train, for mmpretrain heads and mmseg decode heads alike."""

from mmcalib.losses.base import CalibrationLoss
from mmcalib.losses.margin_label_smoothing import (
    MarginLabelSmoothingLoss,
    margin_label_smoothing,
    margin_penalty,
)

__all__ = [
    'CalibrationLoss',
    'MarginLabelSmoothingLoss',
    'margin_label_smoothing',
    'margin_penalty',
]
