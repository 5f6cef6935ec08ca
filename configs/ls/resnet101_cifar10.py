# Label smoothing on CIFAR-10 with ResNet-101.
_base_ = '../ce/resnet101_cifar10.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='LabelSmoothingLoss', alpha=0.05)))
