# Dual focal loss on CIFAR-10 with ResNet-50.
# gamma is not tuned; choose it on validation data.
_base_ = '../ce/resnet50_cifar10.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='DualFocalLoss', gamma=5.0)))
