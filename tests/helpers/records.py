"""Records as a test leaves them, for what reads them."""

import hashlib
import json

SETTINGS = dict(data_preprocessor={}, test_cfg={}, network='0123456789abcdef')


def member(checkpoint='best.pth', **changes):
    """One of the networks of a model."""
    parts = dict(digest=None, seed=None, epoch=None, training=None, calibration=None)
    return dict(checkpoint=checkpoint, **parts, settings=SETTINGS) | changes


def model(*members, **changes):
    """A record's model; of one network alone unless told otherwise."""
    ensemble = dict(pipeline=[], views=[], mc_dropout=0, dropout_seed=None)
    parts = dict(members=list(members or [member()]), **ensemble, calibration=None)
    return dict(parts, temperature=None) | changes


CIFAR10 = dict(type='CIFAR10', split='test', samples=10000)
VOC = dict(type='PascalVOCDataset', ann_file='ImageSets/Segmentation/val.txt', samples=1449)
MBLS = dict(type='MarginLabelSmoothingLoss', margin=6.0, alpha=0.1)
CE = dict(type='CrossEntropyLoss')


def write(folder, experiment, *, ece=4.0, quality='accuracy/top1', name='results.json', **content):
    """Leave a results.json as a test does."""
    folder.mkdir(parents=True, exist_ok=True)
    evaluation = dict(dataset=CIFAR10, tta=False, protocol='pooled', num_bins=15, ignore_index=255)
    run = dict(
        experiment=experiment,
        metrics={quality: 90.0, 'calibration/ECE': ece, 'calibration/AECE': ece},
        model=model(),
        seed=0,
        loss=MBLS,
        trained=trained(network=dict(type='ImageClassifier')),
        training=dict(epochs=350, finished=True, checkpoint='best'),
        evaluation=evaluation | content.pop('evaluation', {}),
        date='2026-01-01',
    )
    (folder / name).write_text(json.dumps(run | content))


def trained(**parts):
    """What a training leaves of itself beside its loss."""
    config = dict(
        network=dict(type='ImageClassifier', backbone=dict(type='ResNet', depth=50)),
        data=dict(type='CIFAR10', split='train'),
        augmentation=[[dict(type='RandomCrop', padding=4), dict(type='PackInputs')]],
        batch_size=128,
        optimizer=dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.1)),
        length=dict(by_epoch=True, max_epochs=350),
        loss_schedules=[],
        other_losses={},
        initial_weights=None,
    )
    config |= parts
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]
    return dict(digest=digest, config=config)
