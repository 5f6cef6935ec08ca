"""One model on all processes."""

import logging

import pytest
import torch
from forked import on_ranks
from mmengine.logging import MessageHub
from torch import nn

from mmcalib import distributed
from mmcalib.hooks.same_buffers_hook import buffers_of_each_process, share_buffers
from mmcalib.metrics import CalibrationMetric

WORLD = 3


def tensors(rank):
    """Of each process: what it has, and what all shall have."""
    third = torch.tensor([1 / 3, 0.1, 7e-8])  # three times it, divided by three, rounds
    return [
        (torch.tensor([[1.0, rank]]), torch.tensor([[1.0, 1.0]])),
        (third, third),
        (torch.tensor([rank, 300], dtype=torch.float16), torch.tensor([1, 300]).half()),
        (torch.tensor(10 + rank), torch.tensor(10)),
        (torch.tensor([rank == 0, True]), torch.tensor([True, True])),
        (torch.full((4,), 200, dtype=torch.uint8), torch.full((4,), 200, dtype=torch.uint8)),
    ]


def _share(rank, folder):
    pairs = tensors(rank)
    share_buffers([have for have, _ in pairs])
    assert all(torch.equal(have, want) and have.dtype == want.dtype for have, want in pairs)
    torch.save(pairs, f'{folder}/{rank}.pt')


def test_floats_become_the_mean_and_others_the_first(tmp_path):
    on_ranks(_share, WORLD, str(tmp_path))
    assert len(list(tmp_path.glob('*.pt'))) == WORLD


def test_buffers_that_are_shared_already_or_constant_are_left_out():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.SyncBatchNorm(2), nn.Linear(2, 2))
    model.register_buffer('mean', torch.zeros(3), persistent=False)
    model.register_buffer('empty', torch.zeros(0))
    found = list(buffers_of_each_process(model))
    assert [id(buffer) for buffer in found] == [id(buffer) for buffer in model[0].buffers()]


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
