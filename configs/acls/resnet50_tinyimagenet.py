# Adaptive and conditional label smoothing (ACLS) on Tiny-ImageNet with ResNet-50.
# The weights are those of the published loss, untuned here.
_base_ = '../ce/resnet50_tinyimagenet.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='ACLSLoss', margin=10.0, alpha=0.1, alpha_others=0.01)))
