"""Configs of tiny models of both toolboxes that predict image files, and their checkpoints."""

import torch
from tiny_models import fcn_head

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
