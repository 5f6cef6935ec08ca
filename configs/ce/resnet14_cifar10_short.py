# Cross-entropy on a fifth of CIFAR-10 with a small ResNet: half an hour on a CPU core.
_base_ = [
    '../_base_/classification.py',
    '../_base_/datasets/cifar10_folder.py',
    '../_base_/schedules/cifar10_short.py',
]

# Six basic blocks of width 16, 32 and 64 are few enough for a CPU.
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='ResNet_CIFAR',
        depth=18,
        stem_channels=16,
        base_channels=16,
        num_stages=3,
        strides=(1, 2, 2),
        dilations=(1, 1, 1),
        out_indices=(2, )),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=64,
        loss=dict(type='CrossEntropyLoss', loss_weight=1.0)))
