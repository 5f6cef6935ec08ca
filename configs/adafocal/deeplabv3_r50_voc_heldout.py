# Adaptive focal loss (AdaFocal) on VOC 2012 with DeepLabV3 and ResNet-50.
# The bins and gammas are those of the published code, untuned here.
# It learns from held-out training images, since the paper's protocol validates on the test split.
_base_ = '../ce/deeplabv3_r50_voc_heldout.py'

model = dict(
    decode_head=dict(
        loss_decode=dict(_delete_=True, type='AdaFocalLoss', num_bins=15)))
custom_hooks = [dict(type='AdaFocalHook')]
