# Softmax focal loss on CIFAR-10 with ViT-B/16.
_base_ = '../ce/vit_cifar10.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='SoftmaxFocalLoss', gamma=3.0)))
