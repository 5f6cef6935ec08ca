"""Figures out of tables and arrays, by the names of runs: no runner, no hooks, no pyplot."""

from mmcalib.visualization.boundary import draw_boundary_curves
from mmcalib.visualization.confidence_maps import (
    ConfidenceMaps,
    ConfidenceView,
    draw_confidence_maps,
)
from mmcalib.visualization.image_calibration import draw_image_calibration
from mmcalib.visualization.pixels import to_rgb
from mmcalib.visualization.reliability import draw_reliability
from mmcalib.visualization.risk import draw_image_risk, draw_risk_coverage, read_image_scores

__all__ = [
    'ConfidenceMaps',
    'ConfidenceView',
    'draw_boundary_curves',
    'draw_confidence_maps',
    'draw_image_calibration',
    'draw_image_risk',
    'draw_reliability',
    'draw_risk_coverage',
    'read_image_scores',
    'to_rgb',
]


def __dir__() -> list[str]:
    return __all__
