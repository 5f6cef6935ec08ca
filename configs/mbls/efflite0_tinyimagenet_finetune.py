# Margin-based label smoothing on folders of Tiny-ImageNet with EfficientNet-Lite0, fine-tuned.
# m=10 as in the paper.
_base_ = '../ce/efflite0_tinyimagenet_finetune.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='MarginLabelSmoothingLoss', margin=10.0, alpha=0.1)))
