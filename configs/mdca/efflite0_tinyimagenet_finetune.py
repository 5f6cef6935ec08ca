# Focal loss with MDCA on folders of Tiny-ImageNet with EfficientNet-Lite0, fine-tuned.
# The weight of MDCA is not tuned; choose it on validation data.
_base_ = '../ce/efflite0_tinyimagenet_finetune.py'

model = dict(
    head=dict(
        loss=dict(
            _delete_=True,
            type='CombinedLoss',
            losses=[
                dict(type='MDCALoss', loss_weight=1.0),
                dict(type='SoftmaxFocalLoss', gamma=3.0),
            ])))
