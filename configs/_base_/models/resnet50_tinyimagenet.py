# ResNet-50 with a 3×3 stem and no max-pooling, for 64×64 images. As in the published code, the last
# 8×8 map is averaged to 2×2 and not to 1×1, so the head sees 4 × 2048 features.
model = dict(
    type='ImageClassifier',
    backbone=dict(type='ResNet_CIFAR', depth=50, num_stages=4, out_indices=(3, )),
    neck=dict(type='GridAveragePooling', size=2),
    head=dict(
        type='LinearClsHead',
        num_classes=200,
        in_channels=8192,
        loss=dict(type='CrossEntropyLoss', loss_weight=1.0)))
