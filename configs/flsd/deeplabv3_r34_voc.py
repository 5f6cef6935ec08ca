# Sample-dependent softmax focal loss on VOC 2012 with DeepLabV3 and ResNet-34.
_base_ = '../ce/deeplabv3_r34_voc.py'

model = dict(
    decode_head=dict(
        loss_decode=dict(_delete_=True, type='SampleDependentFocalLoss')))
