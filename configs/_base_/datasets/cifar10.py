# CIFAR-10 in its official batches: 45,000 of the training images train and 5,000, drawn by a seed,
# validate; 10,000 test. See mmcalib.openmmlab.datasets.seeded_split for how they are drawn.
dataset_type = 'CIFAR10'
data_root = 'data/cifar10'
split = dict(type='SeededSplit', held_out=5000, seed=0)

data_preprocessor = dict(
    num_classes=10,
    mean=[125.307, 122.961, 113.8575],
    std=[51.5865, 50.847, 51.255],
    to_rgb=False)

train_pipeline = [
    dict(type='RandomCrop', crop_size=32, padding=4),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [dict(type='PackInputs')]

train_dataloader = dict(
    batch_size=128,
    num_workers=4,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        **split,
        part='train',
        dataset=dict(
            type=dataset_type,
            data_root=data_root,
            split='train',
            download=False,
            pipeline=train_pipeline)))
val_dataloader = dict(
    batch_size=128,
    num_workers=4,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        **split,
        part='held_out',
        dataset=dict(
            type=dataset_type,
            data_root=data_root,
            split='train',
            download=False,
            pipeline=test_pipeline)))
test_dataloader = dict(
    batch_size=128,
    num_workers=4,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        split='test',
        download=False,
        pipeline=test_pipeline))
