"""All processes validate one model."""

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
    for index, buffer in enumerate(buffers(rank)):
        model.register_buffer(f'buffer_{index}', buffer)
    SameBuffersHook().before_val_epoch(SimpleNamespace(model=model))
    expected = buffers(0)
    actual = list(model.buffers())[-len(expected) :]
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_same_buffers_hook_all_ranks_have_those_of_the_first():
    on_ranks(_share, 3)
