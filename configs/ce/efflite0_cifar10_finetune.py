# Cross-entropy on a fifth of CIFAR-10 with EfficientNet-Lite0, fine-tuned.
_base_ = [
    '../_base_/classification.py',
    '../_base_/datasets/cifar10_folder.py',
    '../_base_/models/efflite0.py',
    '../_base_/schedules/finetune.py',
]

# The ImageNet weights of EfficientNet-Lite.
custom_imports = dict(imports=['mmcalib', 'mmcalib.paper.efficientnet_lite'])

# Images are enlarged to 96×96 and normalised as EfficientNet-Lite expects them.
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
