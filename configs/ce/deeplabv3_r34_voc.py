# Cross-entropy on VOC 2012 with DeepLabV3 and ResNet-34.
_base_ = './deeplabv3_r50_voc.py'

# The output stride is 8 as with ResNet-50, but mmseg dilates only the first of the two convolutions
# of a basic block. The library that the paper used dilates both.
model = dict(
    backbone=dict(depth=34, init_cfg=dict(checkpoint='torchvision://resnet34')),
    decode_head=dict(in_channels=512))
