"""Whether a checkpoint fills a model."""

import pytest
import torch
from torch import nn

from mmcalib.checks import UserError
from mmcalib.hooks.require_complete_weights_hook import load_complete
from mmcalib.losses import CALSLoss


def two_heads():
    return nn.ModuleDict({'head': nn.BatchNorm1d(2), 'auxiliary_head': nn.BatchNorm1d(2)})


def linear_and_norm():
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


def test_a_whole_state_is_loaded():
    state = {key: value + 1 for key, value in linear_and_norm().state_dict().items()}
    # More than the model has is as good, and a counter less.
    more = {**state, 'auxiliary_head.weight': torch.zeros(1)}
    del more['1.num_batches_tracked']
    for given in (state, {f'module.{key}': value for key, value in state.items()}, more):
        model = linear_and_norm()
        load_complete(model, {'state_dict': given})
        assert all(torch.equal(p, state[name]) for name, p in model.named_parameters())


def test_a_parameter_is_missing():
    state = linear_and_norm().state_dict()
    del state['0.bias']
    with pytest.raises(UserError, match=r'lacks 1 of 4 parameters, such as 0\.bias\. Use'):
        load_complete(linear_and_norm(), state)


def test_a_parameter_has_another_shape():
    state = {**linear_and_norm().state_dict(), '0.weight': torch.zeros(3, 5)}
    with pytest.raises(UserError, match=r'size mismatch for 0\.weight'):
        load_complete(linear_and_norm(), state)


@pytest.mark.parametrize('key', ['weight', 'running_mean'])
def test_only_a_resumed_training_needs_auxiliary_heads(key):
    state = two_heads().state_dict()
    del state[f'auxiliary_head.{key}']
    load_complete(two_heads(), state)
    with pytest.raises(UserError, match=rf'such as auxiliary_head\.{key}\. Use .* load_from'):
        load_complete(two_heads(), state, resumed=True)


def test_only_a_resumed_training_needs_what_a_loss_has_learnt():
    def model():
        return nn.ModuleDict({'fc': nn.Linear(2, 4), 'loss_module': CALSLoss(4)})

    state = nn.ModuleDict({'fc': nn.Linear(2, 4)}).state_dict()
    load_complete(model(), state)
    with pytest.raises(UserError, match=r'such as loss_module\.multipliers\. Use'):
        load_complete(model(), state, resumed=True)


def test_what_a_module_itself_refuses_is_said():
    class Picky(nn.Linear):
        def _load_from_state_dict(self, *args):
            raise ValueError('2000 words of 6 numbers')

    with pytest.raises(UserError, match='2000 words of 6 numbers'):
        load_complete(Picky(2, 2), {'weight': torch.zeros(2, 2)})
