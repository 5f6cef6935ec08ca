"""Calibration metrics: registered in mmengine, computed in pure torch."""

from mmcalib.metrics.bins import ConfidenceCells, equal_mass_bins, equal_width_bins
from mmcalib.metrics.calibration import AECE, ECE, CalibrationMetric
from mmcalib.metrics.errors import binned_calibration_error, equal_mass_error_bound

__all__ = [
    'AECE',
    'ECE',
    'CalibrationMetric',
    'ConfidenceCells',
    'binned_calibration_error',
    'equal_mass_bins',
    'equal_mass_error_bound',
    'equal_width_bins',
]
