"""A tiny classifier and a tiny segmentor with colour images, to be tested on shifted data."""

import importlib.util

import pytest
import torch
from commands import ROOT  # noqa: F401
from images import write_folders, write_voc
from mmengine.registry import MODELS

from mmcalib.runs.config import load_config
from mmcalib.runs.facts import config_facts

needs_extra = pytest.mark.skipif(
    importlib.util.find_spec('imagecorruptions') is None, reason='needs mmcalib[shift]'
)
COMMON = """
custom_imports = dict(imports=['mmcalib', 'tiny_models'])
env_cfg = dict(mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0))
test_cfg = dict()
randomness = dict(seed=0)
# A batch of one rounds float32 the same in any number of processes, so that ties stay ties.
loader = dict(batch_size=1, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False))
"""
CLASSIFIER = """
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(mean=[127.0] * 3, std=[60.0] * 3, to_rgb=True),
    backbone=dict(type='TinyFeatures', form='vector'),
    head=dict(type='LinearClsHead', num_classes=4, in_channels=8,
              loss=dict(type='CrossEntropyLoss')))
test_dataloader = dict(
    **loader,
    dataset=dict(type='CustomDataset', data_root='data',
                 pipeline=[dict(type='LoadImageFromFile'), dict(type='PackInputs')]))
test_evaluator = [dict(type='Accuracy'), dict(type='ECE', num_bins=10)]
"""
SEGMENTOR = """
default_scope = 'mmseg'
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(type='SegDataPreProcessor', mean=[127.0] * 3, std=[60.0] * 3,
                           bgr_to_rgb=True, size_divisor=8, test_cfg=dict(size_divisor=8)),
    backbone=dict(type='TinyFeatures'),
    decode_head=dict(type='FCNHead', in_channels=8, channels=8, num_convs=1, num_classes=21,
                     norm_cfg=dict(type='BN'), loss_decode=dict(type='CrossEntropyLoss')),
    test_cfg=dict(mode='whole'))
test_dataloader = dict(
    **loader,
    dataset=dict(type='PascalVOCDataset', data_root='data',
                 ann_file='ImageSets/Segmentation/train.txt',
                 data_prefix=dict(img_path='JPEGImages', seg_map_path='SegmentationClass'),
                 pipeline=[dict(type='LoadImageFromFile'),
                           dict(type='Resize', scale=(40, 40), keep_ratio=True),
                           dict(type='LoadAnnotations'), dict(type='PackSegInputs')]))
test_evaluator = [dict(type='IoUMetric', iou_metrics=['mIoU'])]
"""


def write_config(folder, kind):
    """Write a config with its data."""
    # Names differ, since runs of one name that start in one second share a scope of mmengine.
    if kind == 'classifier':
        write_folders(folder / 'data', classes=4, per_class=3)
        config = folder / 'tiny.py'
        config.write_text(COMMON + CLASSIFIER)
    else:
        write_voc(folder / 'data')
        config = folder / 'tiny_segmentor.py'
        config.write_text(COMMON + SEGMENTOR)
    return config


def write_project(folder, kind):
    """Write a config with its data and two checkpoints, the second calibrated."""
    config = write_config(folder, kind)
    cfg = load_config(str(config))
    for name, seed in (('plain', 0), ('warm', 1)):
        torch.manual_seed(seed)
        with MODELS.switch_scope_and_registry(cfg.default_scope) as registry:
            model = registry.build(cfg.model)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        meta = {'seed': 0, 'facts': config_facts(cfg)}
        if name == 'warm':
            meta['calibration'] = dict(
                method='temperature', options={}, split='val', forced=[], earlier=None
            )
        torch.save({'state_dict': model.state_dict(), 'meta': meta}, folder / f'{name}.pth')
    return config
