"""Configs of tiny models of both toolboxes that predict image files, and their checkpoints."""

import os

import cv2
import numpy as np
import torch
from tiny_models import fcn_head

from mmcalib.metrics import CalibrationStatistics
from mmcalib.metrics.log_bins import log_bin_counts
from mmcalib.runs.checkpoint import read_checkpoint
from mmcalib.runs.config import load_config
from mmcalib.runs.model import Network, describe_model
from mmcalib.runs.record import Record

PREPROCESSOR = dict(mean=[120.0] * 3, std=[60.0] * 3)
SEGMENTOR = dict(
    default_scope='mmseg',
    model=dict(
        type='EncoderDecoder',
        data_preprocessor=dict(type='SegDataPreProcessor', bgr_to_rgb=True, **PREPROCESSOR),
        backbone=dict(type='TinyFeatures'),
        decode_head=fcn_head(),
        test_cfg=dict(mode='whole'),
    ),
    test_dataloader=dict(
        batch_size=2,
        dataset=dict(
            type='BaseSegDataset',
            pipeline=[
                dict(type='LoadImageFromFile'),
                dict(type='Resize', scale=(20, 16), keep_ratio=True),
                dict(type='LoadAnnotations'),
                dict(type='PackSegInputs'),
            ],
        ),
    ),
)
CLASSIFIER = dict(
    default_scope='mmpretrain',
    data_preprocessor=dict(to_rgb=True, **PREPROCESSOR),
    model=dict(
        type='ImageClassifier',
        backbone=dict(type='TinyFeatures', form='vector'),
        head=dict(type='LinearClsHead', num_classes=5, in_channels=8),
    ),
    test_dataloader=dict(
        batch_size=2,
        dataset=dict(
            type='RepeatDataset',
            times=1,
            dataset=dict(
                type='CustomDataset',
                pipeline=[dict(type='LoadImageFromFile'), dict(type='PackInputs')],
            ),
        ),
    ),
)


def write_model(folder, config, model, **changes):
    """Write config.py and best.pth, and return their paths."""
    path = folder / 'config.py'
    path.write_text(''.join(f'{k} = {v!r}\n' for k, v in {**config, **changes}.items()))
    classes = [f'class {k}' for k in range(5 if 'head' in config['model'] else 4)]
    meta = {'dataset_meta': {'classes': classes}, 'seed': 1, 'epoch': 3}
    torch.save({'state_dict': model.state_dict(), 'meta': meta}, folder / 'best.pth')
    return str(path), str(folder / 'best.pth')


def write_members(folder, config, models):
    """Write a config and a checkpoint of each model, and return the paths."""
    members = []
    for number, model in enumerate(models):
        path, checkpoint = write_model(folder, config, model)
        members.append(str(folder / f'{number}.pth'))
        os.rename(checkpoint, members[-1])
    return path, members


def write_photos(folder, sizes):
    """Write images of these heights and widths, 0.png and so on."""
    rng = np.random.default_rng(0)
    for number, size in enumerate(sizes):
        pixels = rng.integers(0, 256, (*(extent // 2 for extent in size), 3), dtype=np.uint8)
        cv2.imwrite(str(folder / f'{number}.png'), cv2.resize(pixels, size[::-1]))
    return folder


def write_labelled(folder, config, photos):
    """Write a config that tests a classifier of photos, one of each class, and return its path."""
    for number in range(5):
        (folder / f'images/class {number}').mkdir(parents=True)
        content = (photos / f'{number % len(list(photos.iterdir()))}.png').read_bytes()
        (folder / f'images/class {number}/{number}.png').write_bytes(content)
    steps = CLASSIFIER['test_dataloader']['dataset']['dataset']['pipeline']
    data = dict(type='CustomDataset', data_root=str(folder / 'images'), pipeline=steps)
    data['metainfo'] = dict(classes=[f'class {k}' for k in range(5)])
    loader = dict(dataset=data, sampler=dict(type='DefaultSampler', shuffle=False))
    loader |= dict(batch_size=1, num_workers=0)
    (folder / 'test.py').write_text(
        f'_base_ = {config!r}\ntest_dataloader = dict(_delete_=True, **{loader})\n'
        'test_cfg = dict()\ntest_evaluator = dict(type="Accuracy")\n'
    )
    return str(folder / 'test.py')


def normalised(path, size=None):
    """Read an image as the models take it, (1, 3, H, W)."""
    image = cv2.imread(str(path))
    if size is not None:
        image = cv2.resize(image, size)
    return torch.from_numpy((image[..., ::-1].astype(np.float32) - 120) / 60).permute(2, 0, 1)[None]


def resized(height, width):
    """Return width and height of what the segmentor gets."""
    factor = min(20 / max(height, width), 16 / min(height, width))
    return int(width * factor + 0.5), int(height * factor + 0.5)


def described(config, checkpoints):
    """The model of a record of a test of a checkpoint, or of several."""
    checkpoints = [checkpoints] if isinstance(checkpoints, str) else checkpoints
    cfg = load_config(config)
    networks = [Network(cfg, read_checkpoint(path)) for path in checkpoints]
    return describe_model(networks, ['test'])


def write_validation(folder, model, found, *, images=300, unlabelled=0, **changes):
    """Leave what a test would, of predictions that are right as often as they say, less a bit."""
    generator = torch.Generator().manual_seed(0)
    bins = []
    for number in range(images):
        conf = torch.from_numpy(
            np.atleast_1d(found[number % len(found)].arrays['confidence'])
        ).flatten()
        correct = torch.rand(conf.shape, generator=generator) < 0.95 * conf
        bins.append(log_bin_counts(conf, correct, conf[:0]))
    bins = torch.stack(bins)
    bins[:, 2, [5, 90]] = unlabelled  # unsure and sure ones
    statistics = CalibrationStatistics({}, 'pooled', 15, torch.zeros(3, 1), image_narrow_bins=bins)
    folder.mkdir(exist_ok=True)
    statistics.save(folder / 'calibration_val.npz')
    write_record_of(folder, model, **changes)
    return bins


def write_record_of(folder, model, **evaluation):
    """Leave the record of the test that has left statistics."""
    evaluation = dict(tta=False, limit=None) | evaluation
    Record('test', 'val', model, evaluation, metrics={}).write(folder / 'results_val.json')
