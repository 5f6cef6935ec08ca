# Adaptive and conditional label smoothing (ACLS) on a fifth of CIFAR-10 with a small ResNet.
# The weights are those of the published loss, untuned here.
_base_ = '../ce/resnet14_cifar10_short.py'

model = dict(
    head=dict(loss=dict(_delete_=True, type='ACLSLoss', margin=6.0, alpha=0.1, alpha_others=0.01)))
