# Class-adaptive label smoothing (CALS-ALM) on VOC 2012 with DeepLabV3 and ResNet-50.
# The margin is that of the published commands, untuned here.
# It learns from held-out training images, since the paper's protocol validates on the test split.
_base_ = '../ce/deeplabv3_r50_voc_heldout.py'

model = dict(
    decode_head=dict(
        loss_decode=dict(_delete_=True, type='CALSLoss', num_classes=21, margin=10.0)))
custom_hooks = [dict(type='CALSHook')]
