"""Records as a test writes them, for their readers."""

import json
from dataclasses import asdict

from mmcalib.runs.record import Record

CIFAR10 = dict(type='CIFAR10', split='test', samples=10000)
VOC = dict(type='PascalVOCDataset', ann_file='ImageSets/Segmentation/val.txt', samples=1449)
MBLS = dict(type='MarginLabelSmoothingLoss', margin=6.0, alpha=0.1)
CE = dict(type='CrossEntropyLoss')
NETWORK = dict(type='ImageClassifier', data_preprocessor={})


def member(checkpoint='best.pth', **changes):
    """Return the record of one member of a model, whose training is over."""
    content = dict(
        checkpoint=checkpoint,
        seed=0,
        epoch=300,
        finished=True,
        file='best.pth',
        calibration=None,
        loss=MBLS,
        digest='0',
        network=NETWORK,
        training=trained(),
    )
    return content | changes


def model(*members, **changes):
    """Return a record's model: that of a single network by default."""
    content = dict(
        members=list(members or [member()]),
        pipeline=[],
        views=[],
        mc_dropout=0,
        dropout_seed=None,
        calibration=None,
        temperature=None,
    )
    return content | changes


MEMBER_KEYS = ('loss', 'seed', 'training', 'finished', 'file', 'calibration', 'network')


def record(experiment, metrics, *, limit=None, **content):
    """Return the record of a test.

    Args:
        experiment: Name of the experiment.
        metrics: Values by key.
        limit: Number of images that the test was limited to.
        content: Parts of the record, and `MEMBER_KEYS` for all members of its model. With the seed
            None, each member has another seed.
    """
    member_content = {key: content.pop(key) for key in MEMBER_KEYS if key in content}
    tested_model = content.pop('model', None)
    if tested_model is None:
        tested_model = model(member(**member_content))
    for number, tested_member in enumerate(tested_model['members']):
        tested_member |= member_content
        if 'seed' in member_content and member_content['seed'] is None:
            tested_member['seed'] = number
    evaluation = dict(
        dataset=CIFAR10,
        tta=False,
        protocol='pooled',
        num_bins=15,
        ignore_index=255,
        limit=limit,
    )
    evaluation |= content.pop('evaluation', {})
    parts = dict(split='test', model=tested_model, evaluation=evaluation, date='2026-01-01')
    return asdict(Record(experiment, metrics=metrics, **(parts | content)))


def write(folder, experiment, *, ece=4.0, quality='accuracy/top1', name='results.json', **content):
    """Write a results.json as a test does."""
    folder.mkdir(parents=True, exist_ok=True)
    default_metrics = {quality: 90.0, 'calibration/ECE': ece, 'calibration/AECE': ece}
    metrics = content.pop('metrics', default_metrics)
    (folder / name).write_text(json.dumps(record(experiment, metrics, **content)))


def trained(**parts):
    """Return the settings that decide about a training, by the keys of its config."""
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
