"""Figures out of tables and arrays: no runner, no hooks, no pyplot."""

from mmcalib.visualization.boundary_curve import boundary_curve_of, draw_boundary_curves
from mmcalib.visualization.confidence_map import draw_confidence_maps
from mmcalib.visualization.corruption_sheet import draw_corruption_sheet
from mmcalib.visualization.figure_style import Evaluation, to_rgb
from mmcalib.visualization.image_risk import draw_image_risk, read_image_scores
from mmcalib.visualization.prediction_picture import draw_classification, draw_segmentation
from mmcalib.visualization.reliability_bands import reliability_of
from mmcalib.visualization.reliability_diagram import draw_reliability
from mmcalib.visualization.reliability_panels import Reliability
from mmcalib.visualization.risk_coverage import draw_risk_coverage, risk_coverage_of
from mmcalib.visualization.saved_confidence_maps import ConfidenceMaps, ConfidenceView
from mmcalib.visualization.severity_figures import (
    ShiftedModel,
    draw_severity_boxes,
    draw_severity_lines,
)
from mmcalib.visualization.sweep_figure import draw_sweeps

__all__ = [
    'ConfidenceMaps',
    'ConfidenceView',
    'Evaluation',
    'Reliability',
    'ShiftedModel',
    'boundary_curve_of',
    'draw_boundary_curves',
    'draw_classification',
    'draw_confidence_maps',
    'draw_corruption_sheet',
    'draw_image_risk',
    'draw_reliability',
    'draw_risk_coverage',
    'draw_segmentation',
    'draw_severity_boxes',
    'draw_severity_lines',
    'draw_sweeps',
    'read_image_scores',
    'reliability_of',
    'risk_coverage_of',
    'to_rgb',
]


def __dir__() -> list[str]:
    return __all__
