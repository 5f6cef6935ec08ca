"""Calibration metrics: registered in mmengine, computed in pure torch.

Functions of arrays need no mmengine.
"""

from typing import TYPE_CHECKING

from mmcalib.metrics.bins.conventions import CONVENTIONS
from mmcalib.metrics.calibration_state import CalibrationState
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
from mmcalib.metrics.functional.out_of_distribution_scores import (
    scores_of_logits,
    scores_of_probabilities,
)
from mmcalib.metrics.functional.refinement import (
    calibration_nll,
    optimal_temperature,
    refinement_nll,
)
from mmcalib.metrics.functional.risk_coverage import (
    area_under_generalized_risk_coverage,
    area_under_risk_coverage,
    coverage_at_risk,
    failure_auroc,
    failure_fpr95,
    risk_at_coverage,
)
from mmcalib.metrics.metric_definitions import NAMES
from mmcalib.metrics.ood_state import OODState
from mmcalib.metrics.saved_statistics import CalibrationStatistics
from mmcalib.metrics.segmentation_protocols import PROTOCOLS
from mmcalib.registration import late_names
from mmcalib.samples.predictions import Prediction

if TYPE_CHECKING:
    from mmcalib.metrics.calibration_metric import AECE, ECE, CalibrationMetric, ClasswiseECE
    from mmcalib.metrics.disagreement_metric import DisagreementMetric
    from mmcalib.metrics.foreground_iou import ForegroundIoU
    from mmcalib.metrics.ood_metric import OODMetric

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
    'brier_score',
    'calibration_nll',
    'classwise_adaptive_calibration_error',
    'classwise_calibration_error',
    'confidence_reliability',
    'confidence_resolution',
    'confidence_uncertainty',
    'coverage_at_risk',
    'debiased_calibration_error',
    'expected_calibration_error',
    'failure_auroc',
    'failure_fpr95',
    'maximum_calibration_error',
    'mean_confidence',
    'negative_log_likelihood',
    'optimal_temperature',
    'overconfidence_error',
    'predicted_class_calibration',
    'refinement_nll',
    'risk_at_coverage',
    'root_mean_square_calibration_error',
    'scores_of_logits',
    'scores_of_probabilities',
    'smooth_calibration_error',
    'thresholded_adaptive_calibration_error',
]

__getattr__ = late_names(
    __name__,
    {
        **dict.fromkeys(
            ('AECE', 'ECE', 'CalibrationMetric', 'ClasswiseECE'),
            'mmcalib.metrics.calibration_metric',
        ),
        'DisagreementMetric': 'mmcalib.metrics.disagreement_metric',
        'ForegroundIoU': 'mmcalib.metrics.foreground_iou',
        'OODMetric': 'mmcalib.metrics.ood_metric',
    },
)


def __dir__() -> list[str]:
    return __all__
