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
    confidence_gap,
    debiased_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    mean_confidence,
    negative_log_likelihood,
    overconfidence_error,
    root_mean_square_calibration_error,
    smooth_calibration_error,
)
from mmcalib.metrics.functional.class_thresholds import (
    class_thresholds,
    recall_over_all,
    recall_thresholds,
)
from mmcalib.metrics.functional.classwise_calibration_error import (
    classwise_adaptive_calibration_error,
    classwise_calibration_error,
    predicted_class_calibration,
    thresholded_adaptive_calibration_error,
)
from mmcalib.metrics.functional.image_failures import image_failure_figures
from mmcalib.metrics.functional.image_scores import image_risks, image_scores, pairwise_dice
from mmcalib.metrics.functional.object_calibration import ObjectCalibration
from mmcalib.metrics.functional.out_of_distribution_scores import (
    scores_of_logits,
    scores_of_probabilities,
)
from mmcalib.metrics.functional.prediction_sets import PredictionSets
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
from mmcalib.samples.objects import find_objects, object_ious
from mmcalib.samples.predictions import Prediction

if TYPE_CHECKING:
    from mmcalib.metrics.calibration_metric import AECE, ECE, CalibrationMetric, ClasswiseECE
    from mmcalib.metrics.disagreement_metric import DisagreementMetric
    from mmcalib.metrics.foreground_iou import ForegroundIoU
    from mmcalib.metrics.image_score_metric import ImageScoreMetric
    from mmcalib.metrics.ood_metric import OODMetric
else:
    __getattr__ = late_names(
        __name__,
        {
            **dict.fromkeys(
                ('AECE', 'ECE', 'CalibrationMetric', 'ClasswiseECE'),
                'mmcalib.metrics.calibration_metric',
            ),
            'DisagreementMetric': 'mmcalib.metrics.disagreement_metric',
            'ForegroundIoU': 'mmcalib.metrics.foreground_iou',
            'ImageScoreMetric': 'mmcalib.metrics.image_score_metric',
            'OODMetric': 'mmcalib.metrics.ood_metric',
        },
    )

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
    'ImageScoreMetric',
    'OODMetric',
    'OODState',
    'ObjectCalibration',
    'Prediction',
    'PredictionSets',
    'accuracy',
    'adaptive_calibration_error',
    'area_under_generalized_risk_coverage',
    'area_under_risk_coverage',
    'average_calibration_error',
    'brier_score',
    'calibration_nll',
    'class_thresholds',
    'classwise_adaptive_calibration_error',
    'classwise_calibration_error',
    'confidence_gap',
    'confidence_reliability',
    'confidence_resolution',
    'confidence_uncertainty',
    'coverage_at_risk',
    'debiased_calibration_error',
    'expected_calibration_error',
    'failure_auroc',
    'failure_fpr95',
    'find_objects',
    'image_failure_figures',
    'image_risks',
    'image_scores',
    'maximum_calibration_error',
    'mean_confidence',
    'negative_log_likelihood',
    'object_ious',
    'optimal_temperature',
    'overconfidence_error',
    'pairwise_dice',
    'predicted_class_calibration',
    'recall_over_all',
    'recall_thresholds',
    'refinement_nll',
    'risk_at_coverage',
    'root_mean_square_calibration_error',
    'scores_of_logits',
    'scores_of_probabilities',
    'smooth_calibration_error',
    'thresholded_adaptive_calibration_error',
]


def __dir__() -> list[str]:
    return __all__
