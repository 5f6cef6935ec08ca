# PASCAL VOC 2012 without leakage: 146 of the 1,464 training images, drawn by a seed, choose the
# checkpoint, and the 1,449 validation images only test. Not the paper's protocol.
_base_ = './voc2012.py'

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
