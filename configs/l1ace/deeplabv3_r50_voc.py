# Cross-entropy with mL1-ACE on VOC 2012 with DeepLabV3 and ResNet-50.
# The weight of mL1-ACE is not tuned; choose it on validation data.
_base_ = '../ce/deeplabv3_r50_voc.py'

model = dict(
    decode_head=dict(
        loss_decode=dict(
            _delete_=True,
            type='CombinedLoss',
            losses=[
                dict(type='L1ACELoss', num_bins=20),
                dict(type='CrossEntropyLoss', avg_non_ignore=True),
            ])))
