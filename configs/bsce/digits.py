# Brier-weighted cross-entropy (BSCE-GRA) on noisy digits.
# gamma is not tuned; choose it on validation data.
_base_ = '../ce/digits.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='BSCELoss', gamma=1.0, norm=2)))
