# Softmax focal loss on Tiny-ImageNet with ResNet-101.
_base_ = '../ce/resnet101_tinyimagenet.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='SoftmaxFocalLoss', gamma=3.0)))
