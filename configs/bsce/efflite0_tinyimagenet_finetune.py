# Brier-weighted cross-entropy (BSCE-GRA) on folders of Tiny-ImageNet with EfficientNet-Lite0.
# gamma is not tuned; choose it on validation data.
_base_ = '../ce/efflite0_tinyimagenet_finetune.py'

model = dict(
    head=dict(
        loss=dict(_delete_=True, type='BSCELoss', gamma=1.0, norm=2)))
