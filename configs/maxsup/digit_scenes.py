# Max suppression (MaxSup) on segmented digit scenes.
# alpha is not tuned; choose it on validation data.
_base_ = '../ce/digit_scenes.py'

model = dict(
    decode_head=dict(
        loss_decode=dict(_delete_=True, type='MarginLabelSmoothingLoss', margin=0.0, alpha=0.1)))
