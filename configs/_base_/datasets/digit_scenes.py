# Digits on canvases with pixel masks, in mmseg's format; nothing to download.
pipeline = [dict(type='PackSegInputs')]

train_dataloader = dict(
    batch_size=4,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(type='DigitScenes', split='train', pipeline=pipeline))
val_dataloader = dict(
    batch_size=10,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='DigitScenes', split='val', pipeline=pipeline))
test_dataloader = dict(
    batch_size=10,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='DigitScenes', split='test', pipeline=pipeline))
