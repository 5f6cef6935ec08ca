# Margin-based label smoothing on CUB-200-2011 with ResNet-101, without leakage; m=10 as in the
# paper.
_base_ = '../ce/resnet101_cub_heldout.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='MarginLabelSmoothingLoss', margin=10.0, alpha=0.1)))
