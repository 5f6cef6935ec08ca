# Brier loss on a fifth of CIFAR-10 with a small ResNet.
_base_ = '../ce/resnet14_cifar10_short.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='BrierLoss')))
