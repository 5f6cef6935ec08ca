"""Models that neither toolbox has."""

from mmcalib.openmmlab.models.grid_pooling import GridAveragePooling as GridAveragePooling
