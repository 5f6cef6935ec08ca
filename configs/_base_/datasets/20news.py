# 20 Newsgroups with the paper's split: all posts pooled and shuffled, the last 20 % to test, 900
# before them to validate. That is 14,177/900/3,769 of the by-date archive, and the paper's
# 15,098/900/3,999 of the older folder 20_newsgroups/.
# The last, smaller batch is kept; the published code drops it, in training and in evaluation.
dataset_type = 'Newsgroups20'
data_root = 'data/20news'
pipeline = [dict(type='PackInputs', input_key='ids', meta_keys=('sample_idx', 'path'))]

train_dataloader = dict(
    batch_size=128,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        split='train',
        protocol='paper',
        pipeline=pipeline))
val_dataloader = dict(
    batch_size=128,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        split='val',
        protocol='paper',
        pipeline=pipeline))
test_dataloader = dict(
    batch_size=128,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        split='test',
        protocol='paper',
        pipeline=pipeline))
