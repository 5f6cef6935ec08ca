# Margin-based label smoothing on VOC people and animals, 40 epochs. m=10 as in the paper.
_base_ = '../ce/deeplabv3plus_efflite0_people_animals_long.py'

model = dict(
    decode_head=dict(
        loss_decode=dict(_delete_=True, type='MarginLabelSmoothingLoss', margin=10.0, alpha=0.1)))
