# Cross-entropy on noisy digits: over-confident, the baseline to compare with.
_base_ = [
    '../_base_/classification.py',
    '../_base_/datasets/digits.py',
    '../_base_/schedules/digits.py',
]

num_threads = 1  # More threads wait for each other, and slow other programs down.

# The images are 8×8 and grey, so ResNet-18 loses its last stage and half of its width.
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='ResNet_CIFAR',
        depth=18,
        in_channels=1,
        stem_channels=32,
        base_channels=32,
        num_stages=3,
        strides=(1, 2, 2),
        dilations=(1, 1, 1),
        out_indices=(2, )),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=128,
        loss=dict(type='CrossEntropyLoss', loss_weight=1.0)))
