# Class-adaptive label smoothing (CALS-ALM) on folders of Tiny-ImageNet with EfficientNet-Lite0.
# The margin is that of the published commands, untuned here.
_base_ = '../ce/efflite0_tinyimagenet_finetune.py'

model = dict(
    head=dict(
        loss=dict(_delete_=True, type='CALSLoss', num_classes=200, margin=10.0)))
custom_hooks = [dict(type='LearnFromValidationHook')]
