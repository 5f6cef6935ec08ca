"""Whether a checkpoint fills a model."""

import pytest
import torch
from torch import nn

from mmcalib.hooks.complete_weights import _misfit


def model(momentum=0.1):
    parts = {'head': nn.BatchNorm1d(2, momentum=momentum), 'auxiliary_head': nn.BatchNorm1d(2)}
    return nn.ModuleDict(parts)


@pytest.mark.parametrize('key', ['weight', 'running_mean'])
def test_only_a_resumed_training_needs_auxiliary_heads(key):
    state = model().state_dict()
    del state[f'auxiliary_head.{key}']
    assert _misfit(model(), state) is None
    assert _misfit(model(), state, with_auxiliary=True).endswith(f'such as auxiliary_head.{key}')


def test_a_counter_that_is_read_must_be_there():
    state = model().state_dict()
    del state['head.num_batches_tracked']
    assert _misfit(model(), state) is None
    # torch fills in the counters of checkpoints that are older than they are.
    state = model(momentum=None).state_dict()
    assert _misfit(model(momentum=None), state) is None


def test_what_a_module_itself_refuses_is_said():
    class Picky(nn.Linear):
        def _load_from_state_dict(self, *args):
            raise ValueError('2000 words of 6 numbers')

    assert _misfit(Picky(2, 2), {'weight': torch.zeros(2, 2)}) == '2000 words of 6 numbers'
