# Dual focal loss on folders of Tiny-ImageNet with EfficientNet-Lite0, fine-tuned.
# gamma is not tuned; choose it on validation data.
_base_ = '../ce/efflite0_tinyimagenet_finetune.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='DualFocalLoss', gamma=5.0)))
