# Class-adaptive label smoothing (CALS-ALM) on segmented digit scenes.
# The margin is that of the published commands, untuned here.
_base_ = '../ce/digit_scenes.py'

model = dict(
    decode_head=dict(
        loss_decode=dict(_delete_=True, type='CALSLoss', num_classes=11, margin=10.0)))
custom_hooks = [dict(type='LearnFromValidationHook')]
train_cfg = dict(val_interval=1)  # it learns after every epoch, as the published code does
