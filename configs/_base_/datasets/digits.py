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

# `--evaluation unseen`: do scores tell the digits from 1,000 of CIFAR-10's test photographs, a
# hundred of each class, in grey and brought to 8×8? They lie in folders, see cifar10_folder.py.
photographs = dict(
    type='CustomDataset',
    data_root='data/cifar10_folder/test',
    pipeline=[
        dict(type='LoadImageFromFile', color_type='grayscale'),
        dict(type='Resize', scale=8, interpolation='area'),
        dict(type='Normalize', mean=[0.0], std=[255.0], to_rgb=False),
        *pipeline,
    ])
evaluations = dict(
    unseen=dict(
        test_dataloader=dict(
            dataset=dict(
                _delete_=True,
                type='WithOODSets',
                dataset=test_dataloader['dataset'],
                far=dict(cifar10=dict(type='EvenSubset', samples=1000, dataset=photographs)))),
        test_evaluator=[
            dict(type='OODMetric', scores=['max_probability', 'max_logit', 'energy', 'entropy'])
        ],
        custom_hooks=[dict(type='KeepLogitsHook')]))
