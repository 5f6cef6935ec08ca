# Margin-based label smoothing on VOC people and animals with DeepLabV3+ and EfficientNet-Lite0.
_base_ = '../ce/deeplabv3plus_efflite0_people_animals.py'

model = dict(
    decode_head=dict(
        loss_decode=dict(_delete_=True, type='MarginLabelSmoothingLoss', margin=10.0, alpha=0.1)))
