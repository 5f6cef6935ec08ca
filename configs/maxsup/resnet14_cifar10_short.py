# Max suppression (MaxSup) on a fifth of CIFAR-10 with a small ResNet.
# alpha is not tuned; choose it on validation data.
_base_ = '../ce/resnet14_cifar10_short.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='MarginLabelSmoothingLoss', margin=0.0, alpha=0.1)))
