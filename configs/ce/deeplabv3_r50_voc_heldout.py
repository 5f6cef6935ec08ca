# Cross-entropy on VOC 2012 with DeepLabV3 and ResNet-50, without leakage: a held-out part of the
# training images chooses the checkpoint. For another loss, inherit from this as mbls/ does.
_base_ = [
    '../_base_/segmentation.py',
    '../_base_/datasets/voc2012_heldout.py',
    '../_base_/models/deeplabv3_r50_voc.py',
    '../_base_/schedules/voc2012.py',
]

default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
