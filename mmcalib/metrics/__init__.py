"""Calibration metrics: registered in mmengine, computed in pure torch."""

from mmcalib.metrics.bins import (
    ConfidenceCells,
    classwise_bins,
    equal_mass_bins,
    equal_width_bins,
)
from mmcalib.metrics.calibration import AECE, ECE, CalibrationMetric, ClasswiseECE
from mmcalib.metrics.conventions import CONVENTIONS
from mmcalib.metrics.errors import (
    accuracy,
    binned_calibration_error,
    classwise_calibration_error,
    equal_mass_error_bound,
    maximum_calibration_error,
    mean_confidence,
    overconfidence_error,
    root_mean_square_calibration_error,
)
from mmcalib.metrics.foreground_iou import ForegroundIoU
from mmcalib.metrics.protocols import PROTOCOLS
from mmcalib.metrics.statistics import CalibrationStatistics

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
