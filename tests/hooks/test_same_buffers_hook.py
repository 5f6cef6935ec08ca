"""One model on all processes."""

import logging
from types import SimpleNamespace

import pytest
import torch
from forked import on_ranks
from mmengine.logging import MessageHub
from torch import nn

from mmcalib import distributed
from mmcalib.hooks import SameBuffersHook
from mmcalib.metrics import CalibrationMetric

WORLD = 3


def buffers(rank):
    return [
        torch.tensor([[1.0, rank]]),
        torch.tensor([rank, 300], dtype=torch.float16),
        torch.tensor(10 + rank),
        torch.tensor([rank == 0, True]),
        torch.full((4,), 200 + rank, dtype=torch.uint8),
        torch.zeros(0),
    ]


def _share(rank, folder):
    model = nn.BatchNorm1d(2)
    for number, buffer in enumerate(buffers(rank)):
        model.register_buffer(f'own_{number}', buffer)
    SameBuffersHook().before_val_epoch(SimpleNamespace(model=model))
    for number, buffer in enumerate(buffers(0)):
        own = getattr(model, f'own_{number}')
        assert torch.equal(own, buffer) and own.dtype == buffer.dtype
    torch.save(model, f'{folder}/{rank}.pt')


def test_all_processes_have_the_buffers_of_the_first(tmp_path):
    on_ranks(_share, WORLD, str(tmp_path))
    assert len(list(tmp_path.glob('*.pt'))) == WORLD


@pytest.mark.parametrize(
    ('config', 'world', 'training', 'warns'),
    [
        ("norm = dict(type='BN')", 2, True, 1),
        ("norm = dict(type='BN')", 1, True, 0),
        ("norm = dict(type='BN')", 2, False, 0),
        ("norm = dict(type='SyncBN')", 2, True, 0),
        ("custom_hooks = [dict(type='SyncBuffersHook')]", 2, True, 0),
        ("custom_hooks = [dict(type='SameBuffersHook')]", 2, True, 0),
    ],
)
def test_another_tools_training_is_warned_of_once(config, world, training, warns, monkeypatch):
    hub = MessageHub('test')
    hub.update_info('cfg', config)
    if training:
        hub.update_info('max_iters', 9)
    monkeypatch.setattr(distributed, 'get_world_size', lambda: world)
    monkeypatch.setattr(distributed.MessageHub, 'get_current_instance', lambda: hub)
    distributed._warn_if_models_differ.cache_clear()
    said = []
    monkeypatch.setattr(
        distributed, 'print_log', lambda text, logger, level: said.append((text, level))
    )
    metric = CalibrationMetric('ECE')
    for _ in range(2):
        metric.process(
            None, [{'pred_score': torch.tensor([0.3, 0.7]), 'gt_label': torch.tensor([1])}]
        )
        metric.evaluate(1)
    assert len(said) == warns
    assert all('SameBuffersHook' in text and level == logging.WARNING for text, level in said)
