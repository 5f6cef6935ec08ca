"""Models that neither toolbox has."""

from mmcalib.models.efficientnet_lite import EfficientNetLiteInit as EfficientNetLiteInit
from mmcalib.models.global_pooling_cnn import GlobalPoolingCNN as GlobalPoolingCNN
from mmcalib.models.grid_pooling import GridAveragePooling as GridAveragePooling
