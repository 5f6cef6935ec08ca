"""Models that neither toolbox has."""

import mmcalib.needs_mmengine  # noqa: F401
from mmcalib.models.efficientnet_lite import EfficientNetLiteInit as EfficientNetLiteInit
from mmcalib.models.global_pooling_cnn import GlobalPoolingCNN as GlobalPoolingCNN
from mmcalib.models.grid_pooling import GridAveragePooling as GridAveragePooling
