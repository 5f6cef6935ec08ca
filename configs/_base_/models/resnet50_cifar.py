# ResNet-50 with a 3×3 stem and no max-pooling, for 32×32 images.
model = dict(
    type='ImageClassifier',
    backbone=dict(type='ResNet_CIFAR', depth=50, num_stages=4, out_indices=(3, )),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=2048,
        loss=dict(type='CrossEntropyLoss', loss_weight=1.0)))
