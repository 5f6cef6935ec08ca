# Max suppression (MaxSup) on VOC 2012 with DeepLabV3 and ResNet-50.
# alpha is not tuned; choose it on validation data.
_base_ = '../ce/deeplabv3_r50_voc.py'

model = dict(
    decode_head=dict(
        loss_decode=dict(_delete_=True, type='MarginLabelSmoothingLoss', margin=0.0, alpha=0.1)))
