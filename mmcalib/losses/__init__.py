"""Losses that calibrate while they train, for mmpretrain heads and mmseg decode heads alike."""

from mmcalib.losses.calibration_loss import CalibrationLoss
from mmcalib.losses.confidence_penalty import ConfidencePenaltyLoss, confidence_penalty
from mmcalib.losses.label_smoothing import LabelSmoothingLoss, label_smoothing
from mmcalib.losses.margin_label_smoothing import (
    MarginLabelSmoothingLoss,
    margin_label_smoothing,
    margin_penalty,
)
from mmcalib.losses.sample_dependent_focal import SampleDependentFocalLoss
from mmcalib.losses.softmax_focal import SoftmaxFocalLoss, softmax_focal

__all__ = [
    'CalibrationLoss',
    'ConfidencePenaltyLoss',
    'LabelSmoothingLoss',
    'MarginLabelSmoothingLoss',
    'SampleDependentFocalLoss',
    'SoftmaxFocalLoss',
    'confidence_penalty',
    'label_smoothing',
    'margin_label_smoothing',
    'margin_penalty',
    'softmax_focal',
]
