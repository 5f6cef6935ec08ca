"""Whether a checkpoint fills a model."""

import pytest
import torch
from torch import nn

from mmcalib.hooks.require_complete_weights_hook import _misfit


def model():
    return nn.ModuleDict({'head': nn.BatchNorm1d(2), 'auxiliary_head': nn.BatchNorm1d(2)})


@pytest.mark.parametrize('key', ['weight', 'running_mean'])
def test_only_a_resumed_training_needs_auxiliary_heads(key):
    state = model().state_dict()
    del state[f'auxiliary_head.{key}']
    assert _misfit(model(), state) is None
    assert _misfit(model(), state, with_auxiliary=True).endswith(f'such as auxiliary_head.{key}')


def test_what_a_module_itself_refuses_is_said():
    class Picky(nn.Linear):
        def _load_from_state_dict(self, *args):
            raise ValueError('2000 words of 6 numbers')

    assert _misfit(Picky(2, 2), {'weight': torch.zeros(2, 2)}) == '2000 words of 6 numbers'
