# Calibration by pairwise constraints (CPC) on CIFAR-10 with ResNet-50.
# The weights are those of the code the formula is from, untuned here.
_base_ = '../ce/resnet50_cifar10.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='CPCLoss', alpha_true=0.1, alpha_others=1.0)))
