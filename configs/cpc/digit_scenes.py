# Calibration by pairwise constraints (CPC) on segmented digit scenes.
# The weights are those of the code the formula is from, untuned here.
_base_ = '../ce/digit_scenes.py'

model = dict(
    decode_head=dict(
        loss_decode=dict(_delete_=True, type='CPCLoss', alpha_true=0.1, alpha_others=1.0)))
