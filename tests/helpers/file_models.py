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
    num_classes = 5 if 'head' in config['model'] else 4
    classes = [f'class {k}' for k in range(num_classes)]
    meta = {'dataset_meta': {'classes': classes}, 'seed': 1, 'epoch': 3}
    torch.save({'state_dict': model.state_dict(), 'meta': meta}, folder / 'best.pth')
    return str(path), str(folder / 'best.pth')


def write_members(folder, config, models):
    """Write a config and a checkpoint of each model, and return the paths."""
    checkpoints = []
    for number, model in enumerate(models):
        path, checkpoint = write_model(folder, config, model)
        checkpoints.append(str(folder / f'{number}.pth'))
        os.rename(checkpoint, checkpoints[-1])
    return path, checkpoints


def write_photos(folder, sizes):
    """Write images of these heights and widths, 0.png and so on."""
    rng = np.random.default_rng(0)
    for number, size in enumerate(sizes):
        pixels = rng.integers(0, 256, (*(extent // 2 for extent in size), 3), dtype=np.uint8)
        cv2.imwrite(str(folder / f'{number}.png'), cv2.resize(pixels, size[::-1]))
    return folder


def write_labelled(folder, config, photos):
    """Write a config that tests a classifier of photos, one of each class, and return its path."""
    num_photos = len(list(photos.iterdir()))
    classes = [f'class {k}' for k in range(5)]
    for number, name in enumerate(classes):
        class_folder = folder / 'images' / name
        class_folder.mkdir(parents=True)
        photo = photos / f'{number % num_photos}.png'
        (class_folder / f'{number}.png').write_bytes(photo.read_bytes())
    loader = dict(
        batch_size=1,
        num_workers=0,
        sampler=dict(type='DefaultSampler', shuffle=False),
        dataset=dict(
            type='CustomDataset',
            data_root=str(folder / 'images'),
            pipeline=CLASSIFIER['test_dataloader']['dataset']['dataset']['pipeline'],
            metainfo=dict(classes=classes),
        ),
    )
    (folder / 'test.py').write_text(
        f'_base_ = {config!r}\ntest_dataloader = dict(_delete_=True, **{loader})\n'
        'test_cfg = dict()\ntest_evaluator = dict(type="Accuracy")\n'
    )
    return str(folder / 'test.py')


def normalised_image(path, size=None):
    """Read an image as the models take it, (1, 3, H, W)."""
    image = cv2.imread(str(path))
    if size is not None:
        image = cv2.resize(image, size)
    return torch.from_numpy((image[..., ::-1].astype(np.float32) - 120) / 60).permute(2, 0, 1)[None]


def segmentor_input_size(height, width):
    """Return width and height of the image that the segmentor gets."""
    factor = min(20 / max(height, width), 16 / min(height, width))
    return int(width * factor + 0.5), int(height * factor + 0.5)


def model_record(config, checkpoints):
    """Return the record's model for a test of a checkpoint, or of an ensemble of several."""
    if isinstance(checkpoints, str):
        checkpoints = [checkpoints]
    cfg = load_config(config)
    networks = [Network(cfg, read_checkpoint(path)) for path in checkpoints]
    return describe_model(networks, ['test'])


def write_validation(folder, model, predictions, *, images=300, unlabelled=0, **changes):
    """Write statistics and record of a validation whose accuracy is 0.95 of its confidence."""
    generator = torch.Generator().manual_seed(0)
    bins = []
    for number in range(images):
        image_conf = predictions[number % len(predictions)].arrays['confidence']
        conf = torch.from_numpy(np.atleast_1d(image_conf)).flatten()
        correct = torch.rand(conf.shape, generator=generator) < 0.95 * conf
        bins.append(log_bin_counts(conf, correct, conf[:0]))
    bins = torch.stack(bins)
    bins[:, 2, [5, 90]] = unlabelled  # A bin of low and a bin of high confidence.
    statistics = CalibrationStatistics({}, 'pooled', 15, torch.zeros(3, 1), image_narrow_bins=bins)
    folder.mkdir(exist_ok=True)
    statistics.save(folder / 'calibration_val.npz')
    write_test_record(folder, model, **changes)
    return bins


def write_test_record(folder, model, **evaluation):
    """Write the record of the test that wrote the statistics of a folder."""
    evaluation = dict(tta=False, limit=None) | evaluation
    Record('test', 'val', model, evaluation, metrics={}).write(folder / 'results_val.json')
