# Dual focal loss on a fifth of CIFAR-10 with a small ResNet.
# gamma is not tuned; choose it on validation data.
_base_ = '../ce/resnet14_cifar10_short.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='DualFocalLoss', gamma=5.0)))
