# Adaptive and conditional label smoothing (ACLS) on CIFAR-10 with ResNet-50.
# The weights are those of the published loss, untuned here.
_base_ = '../ce/resnet50_cifar10.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='ACLSLoss', margin=6.0, alpha=0.1, alpha_others=0.01)))
