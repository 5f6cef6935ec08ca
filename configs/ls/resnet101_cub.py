# Label smoothing on CUB-200-2011 with ResNet-101.
_base_ = '../ce/resnet101_cub.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='LabelSmoothingLoss', alpha=0.05)))
