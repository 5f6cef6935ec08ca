# Cross-entropy on Tiny-ImageNet with ViT-B/16, fine-tuned. The schedule is ours.
_base_ = [
    '../_base_/classification.py',
    '../_base_/datasets/tinyimagenet.py',
    '../_base_/models/vit_b16.py',
    '../_base_/schedules/vit_finetune.py',
]

# Images are enlarged to 224×224 and normalised as the ImageNet-21k weights of ViT expect them.
# This choice is ours, since the paper does not say how it fed the images.
data_preprocessor = dict(mean=[127.5, 127.5, 127.5], std=[127.5, 127.5, 127.5])

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomCrop', crop_size=64, padding=4),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='Resize', scale=224, interpolation='bicubic'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=224, interpolation='bicubic'),
    dict(type='PackInputs'),
]

train_dataloader = dict(batch_size=128, dataset=dict(dataset=dict(pipeline=train_pipeline)))
val_dataloader = dict(batch_size=128, dataset=dict(dataset=dict(pipeline=test_pipeline)))
test_dataloader = dict(batch_size=128, dataset=dict(pipeline=test_pipeline))

model = dict(head=dict(num_classes=200))
default_hooks = dict(visualization=dict(type='VisualizationHook', enable=False))
