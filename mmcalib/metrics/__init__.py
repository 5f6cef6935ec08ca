"""Calibration metrics: registered in mmengine, computed in pure torch."""

from mmcalib.metrics.bins.bin_tables import equal_mass_bins, equal_width_bins
from mmcalib.metrics.bins.binned_errors import (
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
from mmcalib.metrics.bins.classwise_bins import classwise_bins
from mmcalib.metrics.bins.conventions import CONVENTIONS
from mmcalib.metrics.bins.estimates import (
    binned_average_error,
    binned_debiased_error,
    binned_reliability,
    binned_resolution,
    binned_uncertainty,
)
from mmcalib.metrics.bins.narrow_bins import ConfidenceBins
from mmcalib.metrics.bins.risk_coverage import (
    binned_augrc,
    binned_aupr,
    binned_aurc,
    binned_auroc,
    binned_coverage,
    binned_fpr,
    binned_risk,
    risk_coverage_curve,
)
from mmcalib.metrics.bins.smooth_calibration_error import binned_smooth_error
from mmcalib.metrics.calibration_metric import AECE, ECE, CalibrationMetric, ClasswiseECE
from mmcalib.metrics.calibration_state import CalibrationState
from mmcalib.metrics.disagreement_metric import DisagreementMetric
from mmcalib.metrics.foreground_iou import ForegroundIoU
from mmcalib.metrics.functional.brier import (
    brier_score,
    confidence_reliability,
    confidence_resolution,
    confidence_uncertainty,
)
from mmcalib.metrics.functional.calibration_error import (
    accuracy,
    adaptive_calibration_error,
    average_calibration_error,
    debiased_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    mean_confidence,
    negative_log_likelihood,
    overconfidence_error,
    root_mean_square_calibration_error,
    smooth_calibration_error,
)
from mmcalib.metrics.functional.classwise_calibration_error import (
    classwise_adaptive_calibration_error,
    classwise_calibration_error,
    predicted_class_calibration,
    thresholded_adaptive_calibration_error,
)
from mmcalib.metrics.functional.out_of_distribution import scores_of_logits, scores_of_probabilities
from mmcalib.metrics.functional.risk_coverage import (
    area_under_generalized_risk_coverage,
    area_under_risk_coverage,
    coverage_at_risk,
    failure_auroc,
    failure_fpr95,
    risk_at_coverage,
)
from mmcalib.metrics.metric_definitions import NAMES
from mmcalib.metrics.ood_metric import OODMetric
from mmcalib.metrics.ood_state import OODState
from mmcalib.metrics.saved_statistics import CalibrationStatistics
from mmcalib.metrics.segmentation_protocols import PROTOCOLS
from mmcalib.samples.predictions import Prediction

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
    'ConfidenceBins',
    'DisagreementMetric',
    'ForegroundIoU',
    'OODMetric',
    'OODState',
    'Prediction',
    'accuracy',
    'adaptive_calibration_error',
    'area_under_generalized_risk_coverage',
    'area_under_risk_coverage',
    'average_calibration_error',
    'binned_accuracy',
    'binned_augrc',
    'binned_aupr',
    'binned_aurc',
    'binned_auroc',
    'binned_average_error',
    'binned_calibration_error',
    'binned_classwise_error',
    'binned_confidence',
    'binned_coverage',
    'binned_debiased_error',
    'binned_fpr',
    'binned_maximum_error',
    'binned_overconfidence_error',
    'binned_reliability',
    'binned_resolution',
    'binned_risk',
    'binned_root_mean_square_error',
    'binned_smooth_error',
    'binned_uncertainty',
    'brier_score',
    'classwise_adaptive_calibration_error',
    'classwise_bins',
    'classwise_calibration_error',
    'confidence_reliability',
    'confidence_resolution',
    'confidence_uncertainty',
    'coverage_at_risk',
    'debiased_calibration_error',
    'equal_mass_bins',
    'equal_mass_error',
    'equal_mass_error_bound',
    'equal_width_bins',
    'expected_calibration_error',
    'failure_auroc',
    'failure_fpr95',
    'maximum_calibration_error',
    'mean_confidence',
    'negative_log_likelihood',
    'overconfidence_error',
    'predicted_class_calibration',
    'risk_at_coverage',
    'risk_coverage_curve',
    'root_mean_square_calibration_error',
    'scores_of_logits',
    'scores_of_probabilities',
    'smooth_calibration_error',
    'thresholded_adaptive_calibration_error',
]
