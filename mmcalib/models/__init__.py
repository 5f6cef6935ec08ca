"""Models that neither toolbox has."""

from mmcalib.models.grid_pooling import GridAveragePooling

__all__ = ['GridAveragePooling']
