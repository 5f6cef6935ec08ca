# Cross-entropy on folders of Tiny-ImageNet with EfficientNet-Lite0, fine-tuned.
_base_ = [
    '../_base_/classification.py',
    '../_base_/models/efflite0.py',
    '../_base_/schedules/finetune.py',
]

# The ImageNet weights of EfficientNet-Lite.
custom_imports = dict(imports=['mmcalib', 'mmcalib.paper.efficientnet_lite'])

# Folders {train,val,test}/<class>/* hold the images, normalised as EfficientNet-Lite expects them.
# `val` is cut from the training images, `test` from the official validation images.
dataset_type = 'CustomDataset'
data_root = 'data/tinyimagenet_folder'

data_preprocessor = dict(mean=[127, 127, 127], std=[128, 128, 128], to_rgb=True)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomCrop', crop_size=64, padding=4),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]

train_dataloader = dict(
    batch_size=64,
    num_workers=1,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(type=dataset_type, data_root=f'{data_root}/train', pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=100,
    num_workers=1,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type=dataset_type, data_root=f'{data_root}/val', pipeline=test_pipeline))
test_dataloader = dict(
    batch_size=100,
    num_workers=1,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type=dataset_type, data_root=f'{data_root}/test', pipeline=test_pipeline))

# Ten epochs are enough for cross-entropy to become over-confident.
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = dict(end=10)
train_cfg = dict(max_epochs=10)

model = dict(head=dict(num_classes=200))

test_evaluator = [
    dict(type='Accuracy'),
    dict(
        type='CalibrationMetric',
        metrics=[
            'ECE', 'AECE', 'ClasswiseECE', 'smECE', 'NLL', 'Brier', 'AUGRC', 'AURC', 'accuracy',
            'confidence'
        ]),
]
