# Cross-entropy on CUB-200-2011 with ResNet-101, without leakage: a held-out part of the training
# images chooses the checkpoint. For another loss, inherit from this as mbls/ does.
_base_ = [
    '../_base_/classification.py',
    '../_base_/datasets/cub_heldout.py',
    '../_base_/models/resnet101_cub.py',
    '../_base_/schedules/cub.py',
]

default_hooks = dict(visualization=dict(type='VisualizationHook', enable=False))
