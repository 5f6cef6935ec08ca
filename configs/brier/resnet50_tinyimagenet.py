# Brier loss on Tiny-ImageNet with ResNet-50.
_base_ = '../ce/resnet50_tinyimagenet.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='BrierLoss')))
