# Cross-entropy on Tiny-ImageNet with ResNet-101.
_base_ = './resnet50_tinyimagenet.py'

model = dict(backbone=dict(depth=101))
