"""``mmcalib.calibrate`` changes neither the model, nor its inputs, nor the random states."""

import copy
import functools
import random

import numpy as np
import pytest
import torch
from overconfident_networks import (
    Network,
    assert_predicts_scaled_probabilities,
    make_data,
    make_loader,
)
from torch import nn

import mmcalib


@pytest.mark.parametrize('method', ['vector', 'ets'])
def test_calibrate_given_model_is_as_before(method):
    network, inputs, labels = make_data()
    network.train()
    network.body.eval()
    network.fc.bias.requires_grad = False
    network.fc.register_forward_hook(lambda *_: None)
    before = copy.deepcopy(network.state_dict())
    loader = make_loader(inputs, labels, shuffle=True)
    calibrated = mmcalib.calibrate(network, loader, method=method)
    assert not any(module.training for module in calibrated.model.modules())
    assert network.training
    assert not network.body.training
    assert network.fc.training
    assert not network.fc.bias.requires_grad
    assert len(network.fc._forward_hooks) == 1
    torch.testing.assert_close(dict(network.state_dict()), dict(before), rtol=0, atol=0)


def seed_all():
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)


def next_random_numbers():
    return [torch.rand(1).item(), np.random.rand(), random.random()]


@pytest.mark.parametrize('method', ['vector', 'ets'])
def test_calibrate_random_states_are_as_before(method):
    network, inputs, labels = make_data()
    seed_all()
    expected = next_random_numbers()
    seed_all()
    mmcalib.calibrate(network, make_loader(inputs, labels, shuffle=True), method=method)
    assert next_random_numbers() == expected


def test_calibrate_of_a_cpu_model_leaves_the_seeds_of_gpus(monkeypatch):
    """They are kept until a GPU is used first, whose training would then always draw the same."""
    network, inputs, labels = make_data()
    seeds = []
    for name in ('manual_seed', 'manual_seed_all'):
        monkeypatch.setattr(torch.cuda, name, seeds.append)
    mmcalib.calibrate(network, make_loader(inputs, labels), method='ets')
    mmcalib.evaluate(network, make_loader(inputs, labels))
    assert seeds == []


FAILING_CALLS = {
    'calibrate_method_of_other_head': dict(method='platt'),
    'calibrate_labels_out_of_range': dict(label=9),
    'calibrate_labels_of_one_class': dict(label=0),
    'evaluate_protocol_of_maps': dict(protocol='image'),
    'evaluate_labels_out_of_range': dict(label=9),
}


def call_and_fail(name, network, inputs, labels):
    """Call what fails for a shuffled loader, and return the error, whose traceback lives."""
    options = dict(FAILING_CALLS[name])
    label = options.pop('label', None)
    if label is not None:
        labels = torch.full_like(labels, label)
    loader = make_loader(inputs, labels, shuffle=True)
    with pytest.raises(ValueError) as error:
        if name.startswith('calibrate'):
            mmcalib.calibrate(network, loader, **options)
        else:
            mmcalib.evaluate(network, loader, ['ECE'], **options)
    return error


@pytest.mark.parametrize('name', FAILING_CALLS)
def test_failing_call_random_states_are_back_while_error_lives(name):
    network, inputs, labels = make_data()
    network.train()
    seed_all()
    expected = next_random_numbers()
    seed_all()
    error = call_and_fail(name, network, inputs, labels)
    assert network.training
    assert next_random_numbers() == expected
    del error


@pytest.mark.parametrize('name', FAILING_CALLS)
def test_failing_call_freed_error_leaves_random_states(name):
    network, inputs, labels = make_data()
    seed_all()
    expected = next_random_numbers()
    error = call_and_fail(name, network, inputs, labels)
    seed_all()
    del error
    assert next_random_numbers() == expected


def test_calibrate_in_place_error_leaves_model():
    network, inputs, labels = make_data()
    network.train()
    before = copy.deepcopy(network.state_dict())
    loader = make_loader(inputs, torch.full_like(labels, 2))
    with pytest.raises(ValueError, match='all labels are 2'):
        mmcalib.calibrate(network, loader, copy=False)
    assert network.training
    torch.testing.assert_close(dict(network.state_dict()), dict(before))


def test_calibrate_in_place_attached_model_is_the_given_one():
    network, inputs, labels = make_data()
    loader = make_loader(inputs, labels)
    calibrated = mmcalib.calibrate(network.train(), loader, method='ets', copy=False)
    assert calibrated.model.model is network
    assert not network.training
    with pytest.raises(ValueError, match='calibrated already'):
        mmcalib.calibrate(network, loader, copy=False)


class InPlaceNetwork(Network):
    """A network that normalises its inputs in place."""

    def forward(self, x):
        return super().forward(x.sub_(0.1).div_(2))


@pytest.mark.parametrize('method', ['temperature', 'ets'])
def test_calibrate_model_that_changes_inputs_reads_them_as_they_were(method):
    network, inputs, labels = make_data()
    in_place = InPlaceNetwork()
    in_place.load_state_dict(network.state_dict())
    batches = list(make_loader(inputs, labels))
    before = inputs.clone()
    calibrated = mmcalib.calibrate(in_place, batches, method=method)
    after = torch.cat([batch_inputs for batch_inputs, _ in batches])
    assert torch.equal(after, before)
    with torch.no_grad():
        expected = calibrated.scaler.predict_proba(network((inputs - 0.1) / 2))
        actual = calibrated.model(inputs.clone()).softmax(dim=1)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


class BufferLoader:
    """A loader that fills the same tensors again for each batch."""

    def __init__(self, inputs, labels):
        self.inputs = inputs
        self.labels = labels

    def __iter__(self):
        batch_inputs = torch.empty(16, 5)
        batch_labels = torch.empty(16, dtype=torch.int64)
        for x, y in zip(self.inputs.split(16), self.labels.split(16), strict=True):
            yield batch_inputs.copy_(x), batch_labels.copy_(y)


def test_calibrate_loader_that_fills_one_buffer_same_figures():
    network, inputs, labels = make_data(num_images=160)
    actual = mmcalib.calibrate(network, BufferLoader(inputs, labels))
    expected = mmcalib.calibrate(network, make_loader(inputs, labels))
    assert actual.after == expected.after
    assert actual.folded_into == ['fc']


@pytest.mark.parametrize('position', [0, 3, 4])
@pytest.mark.parametrize('method', ['temperature', 'ets'])
def test_calibrate_empty_batch_same_figures(method, position):
    network, inputs, labels = make_data()
    batches = list(make_loader(inputs, labels))
    expected = mmcalib.calibrate(network, batches, method=method)
    batches.insert(position, (inputs[:0], labels[:0]))
    actual = mmcalib.calibrate(network, batches, method=method)
    assert actual.after == expected.after
    assert actual.folded_into == expected.folded_into


NAMED_NETWORK = make_data()[0]


def test_calibrate_attribute_named_as_global_model_is_copied():
    NAMED_NETWORK.NAMED_NETWORK = nn.Identity()
    NAMED_NETWORK.register_forward_hook(lambda module, inputs, output: module.NAMED_NETWORK(output))
    _, inputs, labels = make_data()
    calibrated = mmcalib.calibrate(NAMED_NETWORK, make_loader(inputs, labels))
    assert_predicts_scaled_probabilities(calibrated, NAMED_NETWORK, inputs)


@pytest.mark.parametrize('method', ['temperature', 'ets'])
def test_calibrate_hooks_that_do_not_refer_to_model_are_copied(method):
    network, inputs, labels = make_data()
    module_types = []
    other = nn.Linear(4, 4)
    network.fc.register_forward_hook(lambda module, *_: module_types.append(type(module)))
    network.fc.register_forward_hook(lambda module, inputs, output: other(output) * 0 + output)
    network.forward = functools.partial(type(network).forward, network)
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels), method=method)
    assert_predicts_scaled_probabilities(calibrated, network, inputs)
