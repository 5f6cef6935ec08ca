# Inverse focal loss on segmented digit scenes.
# gamma is not tuned; choose it on validation data.
_base_ = '../ce/digit_scenes.py'

model = dict(
    decode_head=dict(
        loss_decode=dict(_delete_=True, type='InverseFocalLoss', gamma=1.0)))
