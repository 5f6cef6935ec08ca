# ACLS (adaptive and conditional label smoothing) on folders of Tiny-ImageNet, EfficientNet-Lite0.
# The margin and the weights are those of the published loss, untuned here.
_base_ = '../ce/efflite0_tinyimagenet_finetune.py'

model = dict(
    head=dict(
        loss=dict(_delete_=True, type='ACLSLoss', margin=10.0, alpha=0.1, alpha_others=0.01)))
