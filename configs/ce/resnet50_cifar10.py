# Cross-entropy on CIFAR-10 with ResNet-50.
_base_ = [
    '../_base_/classification.py',
    '../_base_/datasets/cifar10.py',
    '../_base_/models/resnet50_cifar.py',
    '../_base_/schedules/cifar10.py',
]

default_hooks = dict(visualization=dict(type='VisualizationHook', enable=False))
