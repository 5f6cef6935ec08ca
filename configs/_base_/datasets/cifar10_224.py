# CIFAR-10 enlarged to 224×224, normalised as the ImageNet-21k weights of ViT expect it. Ours: the
# paper says nothing on how it fed the images.
_base_ = './cifar10.py'

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
