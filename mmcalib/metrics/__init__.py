"""Calibration metrics: registered in mmengine, computed in pure torch.

Functions of arrays need no mmengine.
"""

# ruff: noqa: F401
from typing import TYPE_CHECKING

from mmcalib import late_names
from mmcalib.metrics.class_thresholds import class_thresholds as class_thresholds
from mmcalib.metrics.definitions import NAMES as NAMES
from mmcalib.metrics.image_failures import image_failure_figures as image_failure_figures
from mmcalib.metrics.image_scores import image_risks as image_risks
from mmcalib.metrics.image_scores import image_scores as image_scores
from mmcalib.metrics.image_scores import pairwise_dice as pairwise_dice
from mmcalib.metrics.measure import adaptive_calibration_error as adaptive_calibration_error
from mmcalib.metrics.measure import (
    classwise_adaptive_calibration_error as classwise_adaptive_calibration_error,
)
from mmcalib.metrics.measure import expected_calibration_error as expected_calibration_error
from mmcalib.metrics.measure import measure as measure
from mmcalib.metrics.measure import predicted_class_calibration as predicted_class_calibration
from mmcalib.metrics.protocols import PROTOCOLS as PROTOCOLS
from mmcalib.metrics.statistics import CalibrationStatistics as CalibrationStatistics
from mmcalib.samples.objects import find_objects as find_objects
from mmcalib.samples.objects import object_ious as object_ious

if TYPE_CHECKING:
    from mmcalib.metrics.calibration_metric import AECE, ECE, CalibrationMetric, ClasswiseECE
    from mmcalib.metrics.foreground_iou import ForegroundIoU
    from mmcalib.metrics.image_score_metric import ImageScoreMetric
    from mmcalib.metrics.ood_metric import OODMetric, scores_of_logits, scores_of_probabilities
else:
    __getattr__ = late_names(
        __name__,
        {
            **dict.fromkeys(
                ('AECE', 'ECE', 'CalibrationMetric', 'ClasswiseECE'),
                'mmcalib.metrics.calibration_metric',
            ),
            'ForegroundIoU': 'mmcalib.metrics.foreground_iou',
            'ImageScoreMetric': 'mmcalib.metrics.image_score_metric',
            **dict.fromkeys(
                ('OODMetric', 'scores_of_logits', 'scores_of_probabilities'),
                'mmcalib.metrics.ood_metric',
            ),
        },
    )

_NOT_OURS = ('TYPE_CHECKING', 'late_names')
_LATE = ('AECE', 'ECE', 'CalibrationMetric', 'ClasswiseECE')
_LATE += ('ForegroundIoU', 'ImageScoreMetric', 'OODMetric')
_LATE += ('scores_of_logits', 'scores_of_probabilities')
__all__ = sorted(
    {*_LATE, 'NAMES', 'PROTOCOLS'}
    | {name for name, value in globals().items() if callable(value) and name[0] != '_'}
    - {*_NOT_OURS}
)


def __dir__() -> list[str]:
    return __all__
