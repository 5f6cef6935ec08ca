# CIFAR-10 as folders of images, {train,test}/<class>/*: 10,000 of the training images, drawn by a
# seed, train and another 5,000 validate; all 10,000 test. For short runs without a GPU.
dataset_type = 'CustomDataset'
data_root = 'data/cifar10_folder'
split = dict(type='SeededSplit', part='held_out')

data_preprocessor = dict(
    num_classes=10,
    mean=[125.307, 122.961, 113.8575],
    std=[51.5865, 50.847, 51.255],
    to_rgb=True)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomCrop', crop_size=32, padding=4),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]

train_dataloader = dict(
    batch_size=128,
    num_workers=1,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        **split,
        held_out_per_class=1000,
        seed=0,
        dataset=dict(type=dataset_type, data_root=f'{data_root}/train', pipeline=train_pipeline)))
val_dataloader = dict(
    batch_size=500,
    num_workers=1,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        **split,
        held_out_per_class=500,
        seed=1,
        # Of what the training leaves.
        dataset=dict(
            type='SeededSplit',
            part='train',
            held_out_per_class=1000,
            seed=0,
            dataset=dict(
                type=dataset_type, data_root=f'{data_root}/train', pipeline=test_pipeline))))
test_dataloader = dict(
    batch_size=500,
    num_workers=1,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type=dataset_type, data_root=f'{data_root}/test', pipeline=test_pipeline))
