"""One model on all processes."""

from types import SimpleNamespace

import torch
from forked import on_ranks
from torch import nn

from mmcalib.hooks import SameBuffersHook

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
