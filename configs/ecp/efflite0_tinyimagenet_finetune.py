# Explicit confidence penalty on folders of Tiny-ImageNet with EfficientNet-Lite0, fine-tuned.
_base_ = '../ce/efflite0_tinyimagenet_finetune.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='ConfidencePenaltyLoss', alpha=0.1)))
