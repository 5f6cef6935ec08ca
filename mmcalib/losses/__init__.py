"""Losses that calibrate while they train, for mmpretrain heads and mmseg decode heads alike."""

from mmcalib.losses.acls import ACLSLoss as ACLSLoss, acls as acls
from mmcalib.losses.ada_focal import AdaFocalLoss as AdaFocalLoss, ada_focal as ada_focal
from mmcalib.losses.batch_loss import BatchLoss as BatchLoss
from mmcalib.losses.brier import BrierLoss as BrierLoss, brier as brier
from mmcalib.losses.bsce import BSCELoss as BSCELoss, bsce as bsce
from mmcalib.losses.calibration_loss import CalibrationLoss as CalibrationLoss
from mmcalib.losses.cals import CALSLoss as CALSLoss, cals as cals
from mmcalib.losses.combined_loss import CombinedLoss as CombinedLoss
from mmcalib.losses.confidence_penalty import (
    ConfidencePenaltyLoss as ConfidencePenaltyLoss,
    confidence_penalty as confidence_penalty,
)
from mmcalib.losses.dual_focal import DualFocalLoss as DualFocalLoss, dual_focal as dual_focal
from mmcalib.losses.inverse_focal import (
    InverseFocalLoss as InverseFocalLoss,
    inverse_focal as inverse_focal,
)
from mmcalib.losses.l1_ace import L1ACELoss as L1ACELoss, l1_ace as l1_ace
from mmcalib.losses.label_smoothing import (
    LabelSmoothingLoss as LabelSmoothingLoss,
    label_smoothing as label_smoothing,
)
from mmcalib.losses.margin_label_smoothing import (
    MarginLabelSmoothingLoss as MarginLabelSmoothingLoss,
    margin_label_smoothing as margin_label_smoothing,
    margin_penalty as margin_penalty,
)
from mmcalib.losses.mdca import MDCALoss as MDCALoss, mdca as mdca
from mmcalib.losses.nacl import NACLLoss as NACLLoss, nacl as nacl
from mmcalib.losses.softmax_focal import (
    SampleDependentFocalLoss as SampleDependentFocalLoss,
    SoftmaxFocalLoss as SoftmaxFocalLoss,
    sample_dependent_focal as sample_dependent_focal,
    softmax_focal as softmax_focal,
)
from mmcalib.losses.svls import SVLSLoss as SVLSLoss, svls as svls
