# Focal loss on VOC people and animals, 40 epochs.
_base_ = '../ce/deeplabv3plus_efflite0_people_animals_long.py'

model = dict(
    decode_head=dict(loss_decode=dict(_delete_=True, type='SoftmaxFocalLoss', gamma=3.0)))
