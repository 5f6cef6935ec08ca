# Inverse focal loss on VOC 2012 with DeepLabV3 and ResNet-50.
# gamma is not tuned; choose it on validation data.
_base_ = '../ce/deeplabv3_r50_voc.py'

model = dict(
    decode_head=dict(
        loss_decode=dict(_delete_=True, type='InverseFocalLoss', gamma=1.0)))
