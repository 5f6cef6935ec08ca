# Brier-weighted cross-entropy (BSCE-GRA) on Tiny-ImageNet with ResNet-50.
# gamma is not tuned; choose it on validation data.
_base_ = '../ce/resnet50_tinyimagenet.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='BSCELoss', gamma=1.0, norm=2)))
