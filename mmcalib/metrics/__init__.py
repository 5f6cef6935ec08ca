"""Calibration metrics: registered in mmengine, computed in pure torch."""

from mmcalib.metrics.bin_conventions import CONVENTIONS
from mmcalib.metrics.bin_tables import classwise_bins, equal_mass_bins, equal_width_bins
from mmcalib.metrics.calibration_errors import (
    binned_accuracy,
    binned_calibration_error,
    binned_classwise_error,
    binned_confidence,
    binned_maximum_error,
    binned_overconfidence_error,
    binned_root_mean_square_error,
    equal_mass_error,
    equal_mass_error_bound,
)
from mmcalib.metrics.calibration_metric import AECE, ECE, CalibrationMetric, ClasswiseECE
from mmcalib.metrics.calibration_state import CalibrationState
from mmcalib.metrics.calibration_statistics import CalibrationStatistics
from mmcalib.metrics.confidence_cells import ConfidenceCells
from mmcalib.metrics.definitions import NAMES
from mmcalib.metrics.foreground_iou import ForegroundIoU
from mmcalib.metrics.functional import (
    accuracy,
    adaptive_calibration_error,
    brier_score,
    classwise_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    mean_confidence,
    negative_log_likelihood,
    overconfidence_error,
    root_mean_square_calibration_error,
)
from mmcalib.metrics.predictions import Prediction
from mmcalib.metrics.segmentation_protocols import PROTOCOLS

__all__ = [
    'AECE',
    'CONVENTIONS',
    'ECE',
    'NAMES',
    'PROTOCOLS',
    'CalibrationMetric',
    'CalibrationState',
    'CalibrationStatistics',
    'ClasswiseECE',
    'ConfidenceCells',
    'ForegroundIoU',
    'Prediction',
    'accuracy',
    'adaptive_calibration_error',
    'binned_accuracy',
    'binned_calibration_error',
    'binned_classwise_error',
    'binned_confidence',
    'binned_maximum_error',
    'binned_overconfidence_error',
    'binned_root_mean_square_error',
    'brier_score',
    'classwise_bins',
    'classwise_calibration_error',
    'equal_mass_bins',
    'equal_mass_error',
    'equal_mass_error_bound',
    'equal_width_bins',
    'expected_calibration_error',
    'maximum_calibration_error',
    'mean_confidence',
    'negative_log_likelihood',
    'overconfidence_error',
    'root_mean_square_calibration_error',
]
