# Cross-entropy on CIFAR-10 with ResNet-101.
_base_ = './resnet50_cifar10.py'

model = dict(backbone=dict(depth=101))
