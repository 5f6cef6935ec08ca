# Sample-dependent softmax focal loss on folders of Tiny-ImageNet with EfficientNet-Lite0.
_base_ = '../ce/efflite0_tinyimagenet_finetune.py'

model = dict(
    head=dict(
        loss=dict(_delete_=True, type='SampleDependentFocalLoss')))
