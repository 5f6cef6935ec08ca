# Calibration by pairwise constraints (CPC) on folders of Tiny-ImageNet with EfficientNet-Lite0.
# The weights are those of the code the formula is from, untuned here.
_base_ = '../ce/efflite0_tinyimagenet_finetune.py'

model = dict(
    head=dict(
        loss=dict(_delete_=True, type='CPCLoss', alpha_true=0.1, alpha_others=1.0)))
