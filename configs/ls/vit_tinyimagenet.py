# Label smoothing on Tiny-ImageNet with ViT-B/16.
_base_ = '../ce/vit_tinyimagenet.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='LabelSmoothingLoss', alpha=0.05)))
