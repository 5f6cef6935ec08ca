# voc_people_animals.py with crops of 128x128.
_base_ = 'voc_people_animals.py'

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(224, 224), ratio_range=(0.8, 1.25), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(128, 128), cat_max_ratio=0.9),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
