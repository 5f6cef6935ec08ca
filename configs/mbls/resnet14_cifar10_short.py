# Margin-based label smoothing on a fifth of CIFAR-10 with a small ResNet, with the margin that the
# paper chose on all of it.
_base_ = '../ce/resnet14_cifar10_short.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='MarginLabelSmoothingLoss', margin=6.0, alpha=0.1)))
