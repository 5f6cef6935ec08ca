# Cross-entropy on VOC 2012 with DeepLabV3 and ResNet-50, without leakage: a held-out part of the
# training images chooses the checkpoint. For another loss, inherit from this as mbls/ does.
_base_ = [
    '../_base_/segmentation.py',
    '../_base_/datasets/voc2012.py',
    '../_base_/models/deeplabv3_r50_voc.py',
    '../_base_/schedules/voc2012.py',
]

# A seed draws 146 of the 1,464 training images, which choose the checkpoint; the 1,449 validation
# images only test. This is not the paper's protocol.
split = dict(type='SeededSplit', held_out=146, seed=0)

train_dataloader = dict(
    dataset=dict(
        _delete_=True, **split, part='train', dataset=_base_.train_dataloader.dataset))
val_dataloader = dict(
    dataset=dict(
        _delete_=True,
        **split,
        part='held_out',
        dataset=dict(
            type='PascalVOCDataset',
            data_root=_base_.data_root,
            data_prefix=_base_.data_prefix,
            ann_file='ImageSets/Segmentation/train.txt',
            pipeline=_base_.test_pipeline)))

default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
