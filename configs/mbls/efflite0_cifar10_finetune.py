# Margin-based label smoothing on a fifth of CIFAR-10 with EfficientNet-Lite0, fine-tuned;
# m=6 as in the paper.
_base_ = '../ce/efflite0_cifar10_finetune.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='MarginLabelSmoothingLoss', margin=6.0, alpha=0.1)))
