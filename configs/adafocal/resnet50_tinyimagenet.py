# Adaptive focal loss (AdaFocal) on Tiny-ImageNet with ResNet-50.
# The bins and gammas are those of the published code, untuned here.
_base_ = '../ce/resnet50_tinyimagenet.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='AdaFocalLoss', num_bins=15)))
custom_hooks = [dict(type='AdaFocalHook')]
