"""Calibration metrics: registered in mmengine, computed in pure torch.

Functions of arrays need no mmengine.
"""

# ruff: noqa: F401
from typing import TYPE_CHECKING

from mmcalib import late_names as _late_names
from mmcalib.metrics.definitions import NAMES
from mmcalib.metrics.evaluate import evaluate
from mmcalib.metrics.image_scores import (
    image_failure_figures,
    image_risks,
    image_scores,
    pairwise_dice,
)
from mmcalib.metrics.measure import (
    adaptive_calibration_error,
    classwise_adaptive_calibration_error,
    expected_calibration_error,
    measure,
    predicted_class_calibration,
)
from mmcalib.metrics.protocols import PROTOCOLS
from mmcalib.metrics.risk_threshold import class_thresholds
from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.samples.objects import find_objects, object_ious

_MODULES = {
    'calibration_metric': ('AECE', 'ECE', 'CalibrationMetric', 'ClasswiseECE'),
    'foreground_iou': ('ForegroundIoU',),
    'image_score_metric': ('ImageScoreMetric',),
    'ood_metric': ('OODMetric', 'scores_of_logits', 'scores_of_probabilities'),
}
_LATE = {name: f'{__name__}.{module}' for module, names in _MODULES.items() for name in names}
__all__ = [name for name, value in globals().items() if callable(value) and name[0] != '_']
__all__ = sorted([*__all__, *_LATE, 'NAMES', 'PROTOCOLS'])

if TYPE_CHECKING:
    from mmcalib.metrics.calibration_metric import AECE, ECE, CalibrationMetric, ClasswiseECE
    from mmcalib.metrics.foreground_iou import ForegroundIoU
    from mmcalib.metrics.image_score_metric import ImageScoreMetric
    from mmcalib.metrics.ood_metric import OODMetric, scores_of_logits, scores_of_probabilities
else:
    __getattr__ = _late_names(__name__, _LATE)


def __dir__() -> list[str]:
    return __all__
