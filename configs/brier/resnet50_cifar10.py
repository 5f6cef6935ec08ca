# Brier loss on CIFAR-10 with ResNet-50.
_base_ = '../ce/resnet50_cifar10.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='BrierLoss')))
