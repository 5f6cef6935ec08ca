# Explicit confidence penalty on a fifth of CIFAR-10 with EfficientNet-Lite0, fine-tuned.
_base_ = '../ce/efflite0_cifar10_finetune.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='ConfidencePenaltyLoss', alpha=0.1)))
