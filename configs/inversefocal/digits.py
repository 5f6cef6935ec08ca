# Inverse focal loss on noisy digits.
# gamma is not tuned; choose it on validation data.
_base_ = '../ce/digits.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='InverseFocalLoss', gamma=1.0)))
