# Margin-based label smoothing with m=0 on folders of Tiny-ImageNet with EfficientNet-Lite0.
_base_ = '../ce/efflite0_tinyimagenet_finetune.py'

model = dict(
    head=dict(
        loss=dict(_delete_=True, type='MarginLabelSmoothingLoss', margin=0.0, alpha=0.05)))
