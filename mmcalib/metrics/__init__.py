"""Calibration metrics of arrays, loaders and streams of batches, without mmengine."""

from mmcalib.metrics.by_class import (
    classwise_adaptive_calibration_error as classwise_adaptive_calibration_error,
    predicted_class_calibration as predicted_class_calibration,
)
from mmcalib.metrics.compare import Comparison as Comparison, compare as compare
from mmcalib.metrics.definitions import NAMES as NAMES
from mmcalib.metrics.evaluate import evaluate as evaluate
from mmcalib.metrics.image_scores import (
    image_failure_figures as image_failure_figures,
    image_risks as image_risks,
    image_scores as image_scores,
    pairwise_dice as pairwise_dice,
)
from mmcalib.metrics.measure import (
    adaptive_calibration_error as adaptive_calibration_error,
    expected_calibration_error as expected_calibration_error,
    measure as measure,
)
from mmcalib.metrics.measured import Measured as Measured
from mmcalib.metrics.ood_scores import (
    scores_of_logits as scores_of_logits,
    scores_of_probabilities as scores_of_probabilities,
)
from mmcalib.metrics.protocols import PROTOCOLS as PROTOCOLS
from mmcalib.metrics.risk_threshold import RiskThreshold as RiskThreshold, threshold as threshold
from mmcalib.metrics.statistics import CalibrationStatistics as CalibrationStatistics
from mmcalib.metrics.streaming import StreamingMetrics as StreamingMetrics
from mmcalib.predictions.objects import find_objects as find_objects, object_ious as object_ious
