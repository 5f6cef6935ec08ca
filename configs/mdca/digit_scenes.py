# Focal loss with MDCA on segmented digit scenes.
# The weight of MDCA is not tuned; choose it on validation data.
_base_ = '../ce/digit_scenes.py'

model = dict(
    decode_head=dict(
        loss_decode=dict(
            _delete_=True,
            type='CombinedLoss',
            losses=[
                dict(type='MDCALoss', loss_weight=1.0),
                dict(type='SoftmaxFocalLoss', gamma=3.0),
            ])))
