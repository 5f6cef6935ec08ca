# CUB-200-2011 without leakage: 3 of the 29 or 30 training images of each class, drawn by a seed,
# choose the checkpoint (600 of 5,994), and the test images only test. Not the paper's protocol.
_base_ = './cub.py'

split = dict(type='SeededSplit', held_out_per_class=3, seed=0)

train_dataloader = dict(
    dataset=dict(
        _delete_=True, **split, part='train', dataset=_base_.train_dataloader.dataset))
val_dataloader = dict(
    dataset=dict(
        _delete_=True,
        **split,
        part='held_out',
        dataset=dict(
            type='CUB',
            data_root=_base_.data_root,
            split='train',
            pipeline=_base_.test_pipeline)))
