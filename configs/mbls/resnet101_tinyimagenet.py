# Margin-based label smoothing on Tiny-ImageNet with ResNet-101; the paper chose m=10 on validation
# data.
_base_ = '../ce/resnet101_tinyimagenet.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='MarginLabelSmoothingLoss', margin=10.0, alpha=0.1)))
