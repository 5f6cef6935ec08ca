"""Records as a test leaves them, for what reads them."""

import json
from dataclasses import asdict

from mmcalib.runs.record import Record

CIFAR10 = dict(type='CIFAR10', split='test', samples=10000)
VOC = dict(type='PascalVOCDataset', ann_file='ImageSets/Segmentation/val.txt', samples=1449)
MBLS = dict(type='MarginLabelSmoothingLoss', margin=6.0, alpha=0.1)
CE = dict(type='CrossEntropyLoss')
NETWORK = dict(type='ImageClassifier', data_preprocessor={})


def member(checkpoint='best.pth', **changes):
    """One of the networks of a model, whose training is over."""
    about = dict(seed=0, epoch=300, finished=True, file='best.pth', calibration=None, loss=MBLS)
    about |= dict(digest='0', network=NETWORK, training=trained())
    return dict(checkpoint=checkpoint, **(about | changes))


def model(*members, **changes):
    """A record's model; of one network alone unless told otherwise."""
    ensemble = dict(pipeline=[], views=[], mc_dropout=0, dropout_seed=None)
    parts = dict(members=list(members or [member()]), **ensemble, calibration=None)
    return dict(parts, temperature=None) | changes


OF_MEMBER = ('loss', 'seed', 'training', 'finished', 'file', 'calibration', 'network')


def record(experiment, metrics, *, limit=None, **content):
    """A test's record; what is of its members is given beside its own parts."""
    own = {key: content.pop(key) for key in OF_MEMBER if key in content}
    tested = content.pop('model', None) or model(member(**own))
    for number, each in enumerate(tested['members']):
        each |= own | ({'seed': number} if own.get('seed', 0) is None else {})
    evaluation = dict(dataset=CIFAR10, tta=False, protocol='pooled', num_bins=15, ignore_index=255)
    evaluation |= dict(limit=limit) | content.pop('evaluation', {})
    parts = dict(split='test', model=tested, evaluation=evaluation, date='2026-01-01')
    return asdict(Record(experiment, metrics=metrics, **(parts | content)))


def write(folder, experiment, *, ece=4.0, quality='accuracy/top1', name='results.json', **content):
    """Leave a results.json as a test does."""
    folder.mkdir(parents=True, exist_ok=True)
    metrics = {quality: 90.0, 'calibration/ECE': ece, 'calibration/AECE': ece}
    found = record(experiment, content.pop('metrics', metrics), **content)
    (folder / name).write_text(json.dumps(found))


def trained(**parts):
    """What decides about a training, by the keys of its config."""
    config = dict(
        model=dict(type='ImageClassifier', backbone=dict(type='ResNet_CIFAR', depth=50)),
        train_dataloader=dict(
            batch_size=128,
            dataset=dict(
                type='CIFAR10',
                split='train',
                pipeline=[dict(type='RandomCrop', padding=4), dict(type='PackInputs')],
            ),
        ),
        optim_wrapper=dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.1)),
        train_cfg=dict(by_epoch=True, max_epochs=350),
        limit=None,
    )
    return config | parts
