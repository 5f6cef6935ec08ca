# Softmax focal loss on a fifth of CIFAR-10 with EfficientNet-Lite0, fine-tuned.
_base_ = '../ce/efflite0_cifar10_finetune.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='SoftmaxFocalLoss', gamma=3.0)))
