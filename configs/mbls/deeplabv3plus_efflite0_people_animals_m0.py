# Margin-based label smoothing without a margin, with the paper's weight for it.
_base_ = './deeplabv3plus_efflite0_people_animals.py'

model = dict(decode_head=dict(loss_decode=dict(margin=0.0, alpha=0.05)))
