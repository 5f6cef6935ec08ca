# Neighbour-aware calibration on VOC people and animals, 40 epochs.
# alpha is not tuned; choose it on validation data.
_base_ = '../ce/deeplabv3plus_efflite0_people_animals_long.py'

model = dict(
    decode_head=dict(loss_decode=dict(_delete_=True, type='NACLLoss', alpha=0.1)))
