# Cross-entropy on CIFAR-10 with ResNet-50.
_base_ = [
    '../_base_/classification.py',
    '../_base_/datasets/cifar10.py',
    '../_base_/schedules/cifar10.py',
]

# A 3×3 stem without max-pooling suits 32×32 images.
model = dict(
    type='ImageClassifier',
    backbone=dict(type='ResNet_CIFAR', depth=50, num_stages=4, out_indices=(3, )),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=2048,
        loss=dict(type='CrossEntropyLoss', loss_weight=1.0)))

default_hooks = dict(visualization=dict(type='VisualizationHook', enable=False))
