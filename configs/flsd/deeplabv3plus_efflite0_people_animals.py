# Sample-dependent softmax focal loss on VOC people and animals, DeepLabV3+ on EfficientNet-Lite0.
_base_ = '../ce/deeplabv3plus_efflite0_people_animals.py'

model = dict(
    decode_head=dict(
        loss_decode=dict(_delete_=True, type='SampleDependentFocalLoss')))
