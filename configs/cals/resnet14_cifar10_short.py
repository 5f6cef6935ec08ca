# Class-adaptive label smoothing (CALS-ALM) on a fifth of CIFAR-10 with a small ResNet.
# The margin is that of the published commands, untuned here.
_base_ = '../ce/resnet14_cifar10_short.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='CALSLoss', num_classes=10, margin=10.0)))
custom_hooks = [dict(type='LearnFromValidationHook')]
train_cfg = dict(val_interval=1)  # it learns after every epoch, as the published code does
