"""Figures out of tables and arrays: no runner, no hooks, no pyplot."""

from mmcalib.visualization.boundary import draw_boundary_curves
from mmcalib.visualization.confidence_maps import (
    ConfidenceMaps,
    ConfidenceView,
    draw_confidence_maps,
)
from mmcalib.visualization.prediction_picture import draw_classification, draw_segmentation
from mmcalib.visualization.reliability import draw_image_calibration, draw_reliability
from mmcalib.visualization.risk import draw_image_risk, draw_risk_coverage, read_image_scores
from mmcalib.visualization.shift import ShiftedModel, draw_severity_boxes, draw_severity_lines
from mmcalib.visualization.style import to_rgb
from mmcalib.visualization.sweep import draw_sweeps

__all__ = [
    'ConfidenceMaps',
    'ConfidenceView',
    'ShiftedModel',
    'draw_boundary_curves',
    'draw_classification',
    'draw_confidence_maps',
    'draw_image_calibration',
    'draw_image_risk',
    'draw_reliability',
    'draw_risk_coverage',
    'draw_segmentation',
    'draw_severity_boxes',
    'draw_severity_lines',
    'draw_sweeps',
    'read_image_scores',
    'to_rgb',
]


def __dir__() -> list[str]:
    return __all__
