# Max suppression (MaxSup) on Tiny-ImageNet with ResNet-50.
# alpha is not tuned; choose it on validation data.
_base_ = '../ce/resnet50_tinyimagenet.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='MarginLabelSmoothingLoss', margin=0.0, alpha=0.1)))
