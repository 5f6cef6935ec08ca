# Explicit confidence penalty on CUB-200-2011 with ResNet-101.
_base_ = '../ce/resnet101_cub.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='ConfidencePenaltyLoss', alpha=0.1)))
