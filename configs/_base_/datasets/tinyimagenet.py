# Tiny-ImageNet as it unpacks: of the 500 training images of each class 450 train and 50, drawn by a
# seed, validate (90,000 and 10,000); the official validation images test, since the labels of the
# official test images are not public. See
# mmcalib.openmmlab.datasets.seeded_split for how they are drawn.
dataset_type = 'TinyImageNet'
data_root = 'data/tiny-imagenet-200'
split = dict(type='SeededSplit', held_out_per_class=50, seed=0)

# ImageNet's own; the paper names none.
data_preprocessor = dict(
    num_classes=200,
    mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375],
    to_rgb=True)

# The text names random crops and flips for CIFAR-10; the published code has them here too.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomCrop', crop_size=64, padding=4),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]

train_dataloader = dict(
    batch_size=64,
    num_workers=4,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        **split,
        part='train',
        dataset=dict(
            type=dataset_type, data_root=data_root, split='train', pipeline=train_pipeline)))
val_dataloader = dict(
    batch_size=64,
    num_workers=4,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        **split,
        part='held_out',
        dataset=dict(
            type=dataset_type, data_root=data_root, split='train', pipeline=test_pipeline)))
test_dataloader = dict(
    batch_size=64,
    num_workers=4,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type=dataset_type, data_root=data_root, split='val', pipeline=test_pipeline))
