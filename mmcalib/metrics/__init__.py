"""Calibration metrics: registered in mmengine, computed in pure torch."""

from mmcalib.metrics.bin_conventions import CONVENTIONS
from mmcalib.metrics.bin_tables import (
    classwise_bins,
    equal_mass_bins,
    equal_width_bins,
)
from mmcalib.metrics.calibration_errors import (
    accuracy,
    binned_calibration_error,
    classwise_calibration_error,
    equal_mass_error_bound,
    maximum_calibration_error,
    mean_confidence,
    overconfidence_error,
    root_mean_square_calibration_error,
)
from mmcalib.metrics.calibration_metric import AECE, ECE, CalibrationMetric, ClasswiseECE
from mmcalib.metrics.calibration_statistics import CalibrationStatistics
from mmcalib.metrics.confidence_cells import ConfidenceCells
from mmcalib.metrics.foreground_iou import ForegroundIoU
from mmcalib.metrics.segmentation_protocols import PROTOCOLS

__all__ = [
    'AECE',
    'CONVENTIONS',
    'ECE',
    'PROTOCOLS',
    'CalibrationMetric',
    'CalibrationStatistics',
    'ClasswiseECE',
    'ConfidenceCells',
    'ForegroundIoU',
    'accuracy',
    'binned_calibration_error',
    'classwise_bins',
    'classwise_calibration_error',
    'equal_mass_bins',
    'equal_mass_error_bound',
    'equal_width_bins',
    'maximum_calibration_error',
    'mean_confidence',
    'overconfidence_error',
    'root_mean_square_calibration_error',
]
