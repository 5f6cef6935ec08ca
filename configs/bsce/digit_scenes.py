# Brier-weighted cross-entropy (BSCE-GRA) on segmented digit scenes.
# gamma is not tuned; choose it on validation data.
_base_ = '../ce/digit_scenes.py'

model = dict(
    decode_head=dict(
        loss_decode=dict(_delete_=True, type='BSCELoss', gamma=1.0, norm=2)))
