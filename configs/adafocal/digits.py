# Adaptive focal loss (AdaFocal) on noisy digits.
# The bins and gammas are those of the published code, untuned here.
_base_ = '../ce/digits.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='AdaFocalLoss', num_bins=15)))
custom_hooks = [dict(type='LearnFromValidationHook')]
train_cfg = dict(val_interval=1)  # it learns after every epoch, as the published code does
