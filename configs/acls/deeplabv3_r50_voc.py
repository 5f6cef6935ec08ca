# Adaptive and conditional label smoothing (ACLS) on VOC 2012 with DeepLabV3 and ResNet-50.
# The weights are those of the published loss, untuned here.
_base_ = '../ce/deeplabv3_r50_voc.py'

model = dict(
    decode_head=dict(
        loss_decode=dict(
            _delete_=True, type='ACLSLoss', margin=10.0, alpha=0.1, alpha_others=0.01)))
