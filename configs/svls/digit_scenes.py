# Spatially varying label smoothing on segmented digit scenes.
_base_ = '../ce/digit_scenes.py'

model = dict(
    decode_head=dict(
        loss_decode=dict(_delete_=True, type='SVLSLoss', sigma=1.0)))
