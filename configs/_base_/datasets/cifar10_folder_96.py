# CIFAR-10 as folders of images, enlarged to 96×96 and normalised as EfficientNet-Lite expects it.
_base_ = './cifar10_folder.py'

data_preprocessor = dict(mean=[127, 127, 127], std=[128, 128, 128])

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomCrop', crop_size=32, padding=4),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='Resize', scale=96, interpolation='bicubic'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=96, interpolation='bicubic'),
    dict(type='PackInputs'),
]

train_dataloader = dict(batch_size=64, dataset=dict(dataset=dict(pipeline=train_pipeline)))
val_dataloader = dict(
    batch_size=100, dataset=dict(dataset=dict(dataset=dict(pipeline=test_pipeline))))
test_dataloader = dict(batch_size=100, dataset=dict(pipeline=test_pipeline))
