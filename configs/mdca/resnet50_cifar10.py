# Focal loss with MDCA on CIFAR-10 with ResNet-50.
# The weight of MDCA is not tuned; choose it on validation data.
_base_ = '../ce/resnet50_cifar10.py'

model = dict(
    head=dict(
        loss=dict(
            _delete_=True,
            type='CombinedLoss',
            losses=[
                dict(type='MDCALoss', loss_weight=1.0),
                dict(type='SoftmaxFocalLoss', gamma=3.0),
            ])))
