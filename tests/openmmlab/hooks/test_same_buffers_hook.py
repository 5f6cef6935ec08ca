"""One model on all processes."""

from types import SimpleNamespace

import torch
from forked import on_ranks
from torch import nn

from mmcalib.openmmlab.hooks import SameBuffersHook


def buffers(rank):
    return [
        torch.tensor([[1.0, rank]]),
        torch.tensor([rank, 300], dtype=torch.float16),
        torch.tensor(10 + rank),
        torch.tensor([rank == 0, True]),
        torch.full((4,), 200 + rank, dtype=torch.uint8),
        torch.zeros(0),
    ]


def _share(rank):
    model = nn.BatchNorm1d(2)
    for number, buffer in enumerate(buffers(rank)):
        model.register_buffer(f'own_{number}', buffer)
    SameBuffersHook().before_val_epoch(SimpleNamespace(model=model))
    found = list(model.buffers())[-len(buffers(0)) :]
    torch.testing.assert_close(found, buffers(0), rtol=0, atol=0)


def test_all_processes_have_the_buffers_of_the_first():
    on_ranks(_share, 3)
