# scikit-learn's digits under noise, in mmpretrain's format; nothing to download.
pipeline = [dict(type='PackInputs')]

data_preprocessor = dict(num_classes=10, mean=[0.3], std=[0.5])

train_dataloader = dict(
    batch_size=64,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(type='Digits', split='train', pipeline=pipeline))
val_dataloader = dict(
    batch_size=200,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='Digits', split='val', pipeline=pipeline))
test_dataloader = dict(
    batch_size=200,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='Digits', split='test', pipeline=pipeline))
