# Calibration by pairwise constraints (CPC) on a fifth of CIFAR-10 with a small ResNet.
# The weights are those of the code the formula is from, untuned here.
_base_ = '../ce/resnet14_cifar10_short.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='CPCLoss', alpha_true=0.1, alpha_others=1.0)))
