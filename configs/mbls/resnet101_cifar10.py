# Margin-based label smoothing on CIFAR-10 with ResNet-101; the paper chose m=6 on validation data.
_base_ = '../ce/resnet101_cifar10.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='MarginLabelSmoothingLoss', margin=6.0, alpha=0.1)))
