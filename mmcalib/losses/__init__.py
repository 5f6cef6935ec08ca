"""Losses that calibrate while they train, for mmpretrain heads and mmseg decode heads alike."""

# ruff: noqa: F401
from mmcalib.losses.acls import ACLSLoss, acls
from mmcalib.losses.ada_focal import AdaFocalLoss, ada_focal
from mmcalib.losses.batch_loss import BatchLoss
from mmcalib.losses.brier import BrierLoss, brier
from mmcalib.losses.bsce import BSCELoss, bsce
from mmcalib.losses.calibration_loss import CalibrationLoss
from mmcalib.losses.cals import CALSLoss, cals
from mmcalib.losses.combined_loss import CombinedLoss
from mmcalib.losses.confidence_penalty import ConfidencePenaltyLoss, confidence_penalty
from mmcalib.losses.dual_focal import DualFocalLoss, dual_focal
from mmcalib.losses.inverse_focal import InverseFocalLoss, inverse_focal
from mmcalib.losses.l1_ace import L1ACELoss, l1_ace
from mmcalib.losses.label_smoothing import LabelSmoothingLoss, label_smoothing
from mmcalib.losses.margin_label_smoothing import (
    MarginLabelSmoothingLoss,
    margin_label_smoothing,
    margin_penalty,
)
from mmcalib.losses.mdca import MDCALoss, mdca
from mmcalib.losses.nacl import NACLLoss, nacl
from mmcalib.losses.softmax_focal import (
    SampleDependentFocalLoss,
    SoftmaxFocalLoss,
    sample_dependent_focal,
    softmax_focal,
)
from mmcalib.losses.svls import SVLSLoss, svls

__all__ = sorted(name for name, value in globals().items() if callable(value))
