# Cross-entropy on Tiny-ImageNet with ResNet-50.
_base_ = [
    '../_base_/classification.py',
    '../_base_/datasets/tinyimagenet.py',
    '../_base_/models/resnet50_tinyimagenet.py',
    '../_base_/schedules/tinyimagenet.py',
]

default_hooks = dict(visualization=dict(type='VisualizationHook', enable=False))
