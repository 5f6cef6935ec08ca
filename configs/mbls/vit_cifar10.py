# Margin-based label smoothing on CIFAR-10 with ViT-B/16; m=6, the paper's for this data.
_base_ = '../ce/vit_cifar10.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='MarginLabelSmoothingLoss', margin=6.0, alpha=0.1)))
