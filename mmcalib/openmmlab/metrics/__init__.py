"""The registered metrics: they stand beside Accuracy or IoUMetric in an evaluator."""

from mmcalib.openmmlab.metrics.calibration_metric import (
    AECE as AECE,
    ECE as ECE,
    CalibrationMetric as CalibrationMetric,
    ClasswiseECE as ClasswiseECE,
)
from mmcalib.openmmlab.metrics.foreground_iou import ForegroundIoU as ForegroundIoU
from mmcalib.openmmlab.metrics.image_score_metric import ImageScoreMetric as ImageScoreMetric
from mmcalib.openmmlab.metrics.ood_metric import OODMetric as OODMetric
