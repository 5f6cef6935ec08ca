# Calibration by pairwise constraints (CPC) on VOC 2012 with DeepLabV3 and ResNet-50.
# The weights are those of the code the formula is from, untuned here.
_base_ = '../ce/deeplabv3_r50_voc.py'

model = dict(
    decode_head=dict(
        loss_decode=dict(_delete_=True, type='CPCLoss', alpha_true=0.1, alpha_others=1.0)))
