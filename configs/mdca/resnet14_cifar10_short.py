# Focal loss with MDCA on a fifth of CIFAR-10 with a small ResNet.
# The weight of MDCA is not tuned; choose it on validation data.
_base_ = '../ce/resnet14_cifar10_short.py'

model = dict(
    head=dict(
        loss=dict(
            _delete_=True,
            type='CombinedLoss',
            losses=[
                dict(type='MDCALoss', loss_weight=1.0),
                dict(type='SoftmaxFocalLoss', gamma=3.0),
            ])))
