"""Models that neither toolbox has."""

from mmcalib.openmmlab.models.efficientnet_lite import EfficientNetLiteInit as EfficientNetLiteInit
from mmcalib.openmmlab.models.global_pooling_cnn import GlobalPoolingCNN as GlobalPoolingCNN
from mmcalib.openmmlab.models.grid_pooling import GridAveragePooling as GridAveragePooling
