"""Losses that calibrate while they train, for mmpretrain heads and mmseg decode heads alike."""

from mmcalib.losses.acls import ACLSLoss, acls
from mmcalib.losses.ada_focal import AdaFocalLoss, ada_focal
from mmcalib.losses.base.batch_loss import BatchLoss
from mmcalib.losses.base.calibration_loss import CalibrationLoss
from mmcalib.losses.brier import BrierLoss, brier
from mmcalib.losses.bsce import BSCELoss, bsce
from mmcalib.losses.cals import CALSLoss, cals
from mmcalib.losses.combined_loss import CombinedLoss
from mmcalib.losses.confidence_penalty import ConfidencePenaltyLoss, confidence_penalty
from mmcalib.losses.dual_focal import DualFocalLoss, dual_focal
from mmcalib.losses.inverse_focal import InverseFocalLoss, inverse_focal
from mmcalib.losses.l1_ace import L1ACELoss
from mmcalib.losses.label_smoothing import LabelSmoothingLoss, label_smoothing
from mmcalib.losses.margin_label_smoothing import (
    MarginLabelSmoothingLoss,
    margin_label_smoothing,
    margin_penalty,
)
from mmcalib.losses.mdca import MDCALoss
from mmcalib.losses.nacl import NACLLoss, nacl
from mmcalib.losses.sample_dependent_focal import SampleDependentFocalLoss
from mmcalib.losses.softmax_focal import SoftmaxFocalLoss, softmax_focal
from mmcalib.losses.svls import SVLSLoss

__all__ = [
    'ACLSLoss',
    'AdaFocalLoss',
    'BSCELoss',
    'BatchLoss',
    'BrierLoss',
    'CALSLoss',
    'CalibrationLoss',
    'CombinedLoss',
    'ConfidencePenaltyLoss',
    'DualFocalLoss',
    'InverseFocalLoss',
    'L1ACELoss',
    'LabelSmoothingLoss',
    'MDCALoss',
    'MarginLabelSmoothingLoss',
    'NACLLoss',
    'SVLSLoss',
    'SampleDependentFocalLoss',
    'SoftmaxFocalLoss',
    'acls',
    'ada_focal',
    'brier',
    'bsce',
    'cals',
    'confidence_penalty',
    'dual_focal',
    'inverse_focal',
    'label_smoothing',
    'margin_label_smoothing',
    'margin_penalty',
    'nacl',
    'softmax_focal',
]


def __dir__() -> list[str]:
    return __all__
