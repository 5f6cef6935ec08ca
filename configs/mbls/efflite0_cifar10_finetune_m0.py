# Margin-based label smoothing without a margin, with the paper's weight for it.
_base_ = './efflite0_cifar10_finetune.py'

model = dict(head=dict(loss=dict(margin=0.0, alpha=0.05)))
