# Margin-based label smoothing on Tiny-ImageNet with ViT-B/16; m=10, the paper's for this data.
_base_ = '../ce/vit_tinyimagenet.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='MarginLabelSmoothingLoss', margin=10.0, alpha=0.1)))
