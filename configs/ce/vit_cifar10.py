# Cross-entropy on CIFAR-10 with ViT-B/16, fine-tuned. The schedule is ours.
_base_ = [
    '../_base_/classification.py',
    '../_base_/datasets/cifar10.py',
    '../_base_/models/vit_b16.py',
    '../_base_/schedules/vit_finetune.py',
]

# Images are enlarged to 224×224 and normalised as the ImageNet-21k weights of ViT expect them.
# This choice is ours, since the paper does not say how it fed the images.
data_preprocessor = dict(mean=[127.5, 127.5, 127.5], std=[127.5, 127.5, 127.5])

train_pipeline = [
    dict(type='RandomCrop', crop_size=32, padding=4),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='Resize', scale=224, interpolation='bicubic'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='Resize', scale=224, interpolation='bicubic'),
    dict(type='PackInputs'),
]

train_dataloader = dict(dataset=dict(dataset=dict(pipeline=train_pipeline)))
val_dataloader = dict(dataset=dict(dataset=dict(pipeline=test_pipeline)))
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))

default_hooks = dict(visualization=dict(type='VisualizationHook', enable=False))
