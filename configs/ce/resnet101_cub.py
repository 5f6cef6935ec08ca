# Cross-entropy on CUB-200-2011 with ResNet-101, by the paper's protocol: the test images choose the
# checkpoint too.
_base_ = [
    '../_base_/classification.py',
    '../_base_/datasets/cub.py',
    '../_base_/models/resnet101_cub.py',
    '../_base_/schedules/cub.py',
]

default_hooks = dict(visualization=dict(type='VisualizationHook', enable=False))
