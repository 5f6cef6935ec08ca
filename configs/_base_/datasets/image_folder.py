# Your own images, in a folder for each class: data/images/{train,val,test}/<class>/*. `val` chooses
# the checkpoint and the margin, `test` only tests. Elsewhere, set the three `data_root`s; another
# number of classes than 10 is --cfg-options model.head.num_classes=….
# Normalised as EfficientNet-Lite expects it.
dataset_type = 'CustomDataset'
data_root = 'data/images'

data_preprocessor = dict(mean=[127, 127, 127], std=[128, 128, 128], to_rgb=True)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomResizedCrop', scale=224, crop_ratio_range=(0.25, 1.0)),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale=256, edge='short'),
    dict(type='CenterCrop', crop_size=224),
    dict(type='PackInputs'),
]

train_dataloader = dict(
    batch_size=64,
    num_workers=2,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(type=dataset_type, data_root=f'{data_root}/train', pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=64,
    num_workers=2,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type=dataset_type, data_root=f'{data_root}/val', pipeline=test_pipeline))
test_dataloader = dict(
    batch_size=64,
    num_workers=2,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type=dataset_type, data_root=f'{data_root}/test', pipeline=test_pipeline))
