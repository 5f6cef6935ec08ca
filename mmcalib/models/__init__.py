"""Models that neither toolbox has."""

import mmcalib.needs_mmengine  # noqa: F401
from mmcalib.models.efficientnet_lite import EfficientNetLiteInit
from mmcalib.models.global_pooling_cnn import GlobalPoolingCNN
from mmcalib.models.grid_pooling import GridAveragePooling
from mmcalib.models.text_data_preprocessor import TextDataPreprocessor

__all__ = [
    'EfficientNetLiteInit',
    'GlobalPoolingCNN',
    'GridAveragePooling',
    'TextDataPreprocessor',
]
