# Focal loss with MDCA on VOC 2012 with DeepLabV3 and ResNet-50.
# The weight of MDCA is not tuned; choose it on validation data.
_base_ = '../ce/deeplabv3_r50_voc.py'

model = dict(
    decode_head=dict(
        loss_decode=dict(
            _delete_=True,
            type='CombinedLoss',
            losses=[
                dict(type='MDCALoss', loss_weight=1.0),
                dict(type='SoftmaxFocalLoss', gamma=3.0),
            ])))
