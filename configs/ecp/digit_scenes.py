# Explicit confidence penalty on segmented digit scenes.
_base_ = '../ce/digit_scenes.py'

model = dict(
    decode_head=dict(
        loss_decode=dict(_delete_=True, type='ConfidencePenaltyLoss', alpha=0.1)))
