"""Figures out of tables and arrays: no runner, no hooks, no pyplot."""

from mmcalib.visualization.confidence_map import (
    ConfidenceMaps,
    ConfidenceView,
    draw_confidence_maps,
)
from mmcalib.visualization.reliability import Reliability, draw_reliability
from mmcalib.visualization.style import to_rgb
from mmcalib.visualization.sweep import draw_sweeps

__all__ = [
    'ConfidenceMaps',
    'ConfidenceView',
    'Reliability',
    'draw_confidence_maps',
    'draw_reliability',
    'draw_sweeps',
    'to_rgb',
]
