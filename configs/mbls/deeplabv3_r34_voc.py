# Margin-based label smoothing on VOC 2012 with DeepLabV3 and ResNet-34; m=10 as in the paper.
_base_ = '../ce/deeplabv3_r34_voc.py'

model = dict(
    decode_head=dict(
        loss_decode=dict(_delete_=True, type='MarginLabelSmoothingLoss', margin=10.0, alpha=0.1)))
