"""Whether a checkpoint fills a model."""

import pytest
import torch
from torch import nn

from mmcalib.hooks.require_complete_weights_hook import _misfit
from mmcalib.losses import CALSLoss


def model():
    return nn.ModuleDict({'head': nn.BatchNorm1d(2), 'auxiliary_head': nn.BatchNorm1d(2)})


@pytest.mark.parametrize('key', ['weight', 'running_mean'])
def test_only_a_resumed_training_needs_auxiliary_heads(key):
    state = model().state_dict()
    del state[f'auxiliary_head.{key}']
    assert _misfit(model(), state) is None
    assert _misfit(model(), state, resumed=True).endswith(f'such as auxiliary_head.{key}')


def test_only_a_resumed_training_needs_what_a_loss_has_learnt():
    def model():
        return nn.ModuleDict({'fc': nn.Linear(2, 4), 'loss_module': CALSLoss(4)})

    state = nn.ModuleDict({'fc': nn.Linear(2, 4)}).state_dict()
    assert _misfit(model(), state) is None
    assert _misfit(model(), state, resumed=True).endswith('such as loss_module.multipliers')


def test_what_a_module_itself_refuses_is_said():
    class Picky(nn.Linear):
        def _load_from_state_dict(self, *args):
            raise ValueError('2000 words of 6 numbers')

    assert _misfit(Picky(2, 2), {'weight': torch.zeros(2, 2)}) == '2000 words of 6 numbers'
