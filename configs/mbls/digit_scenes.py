# Margin-based label smoothing on segmented digit scenes.
_base_ = '../ce/digit_scenes.py'

model = dict(
    decode_head=dict(
        loss_decode=dict(_delete_=True, type='MarginLabelSmoothingLoss', margin=8.0, alpha=0.1)))
