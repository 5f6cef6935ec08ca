# Margin-based label smoothing without a margin, with the paper's weight for it.
_base_ = './resnet14_cifar10_short.py'

model = dict(head=dict(loss=dict(margin=0.0, alpha=0.05)))
