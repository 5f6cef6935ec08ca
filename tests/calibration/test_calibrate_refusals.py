"""Mistakes that ``mmcalib.calibrate`` refuses in one line."""

import copy
import functools
import threading
from dataclasses import dataclass, field

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
from mmcalib.posthoc import TemperatureScaler


def lowest_class(network, inputs, labels):
    return network(inputs).argmin(dim=1)


def highest_class(network, inputs, labels):
    return network(inputs).argmax(dim=1)


def class_two(network, inputs, labels):
    return torch.full_like(labels, 2)


def one_hot(network, inputs, labels):
    return nn.functional.one_hot(labels, 4)


def foreground_255(network, inputs, labels):
    return (labels > 0).long() * 255


@dataclass
class Refusal:
    """A call that is refused.

    Attributes:
        message: Pattern of the error.
        options: Options of the call.
        labels: Function that returns other labels for the images; None for those that are drawn.
        shape: Shape of the pixels of an image.
    """

    message: str
    options: dict = field(default_factory=dict)
    labels: object = None
    shape: tuple = ()


REFUSALS = {
    'labels_of_other_classes': Refusal('classes .* in the same order', labels=lowest_class),
    'masks_of_0_and_255': Refusal(
        'write 1 in its place', {'ignore_index': 255}, foreground_255, (6, 7)
    ),
    'one_class': Refusal('all labels are 2', labels=class_two),
    'probabilities': Refusal(
        'returns probabilities', {'logits': lambda output: output.softmax(dim=1)}
    ),
    'no_prediction_is_wrong': Refusal('no prediction is wrong', labels=highest_class),
    'unknown_method': Refusal('did you mean temperature', {'method': 'temprature'}),
    'method_for_two_classes': Refusal('takes logits of two classes', {'method': 'platt'}),
    'no_groups': Refusal('groups is empty', {'groups': []}),
    'few_groups': Refusal('group of each of 60 images, got 3', {'groups': range(3)}),
    'one_group': Refusal('are of one group', {'groups': [0] * 60}),
    'one_hot_labels': Refusal(r'labels\.argmax\(1\)', labels=one_hot),
}


@pytest.mark.parametrize('name', REFUSALS)
def test_calibrate_invalid_call_raises_one_line(name):
    refusal = REFUSALS[name]
    network, inputs, labels = make_data(refusal.shape)
    if refusal.labels is not None:
        labels = refusal.labels(network, inputs, labels)
    with pytest.raises(ValueError, match=refusal.message) as error:
        mmcalib.calibrate(network, make_loader(inputs, labels), **refusal.options)
    assert '\n' not in str(error.value)


def test_calibrate_nan_inputs_raises():
    network, inputs, labels = make_data()
    with pytest.raises(ValueError, match='NaN'):
        mmcalib.calibrate(network, make_loader(inputs * float('nan'), labels))


def test_calibrate_constant_labels_of_sigmoids_raises():
    network, inputs, labels = make_data(num_logits=3, sigmoids=True)
    with pytest.raises(ValueError, match='all labels are 0'):
        mmcalib.calibrate(network, make_loader(inputs, labels * 0))


@pytest.mark.parametrize('order', [[1, 0, 2, 3, 4], [0, 2, 3, 1, 4]])
def test_calibrate_exchanged_classes_raises(order):
    torch.manual_seed(0)
    logits = 4 * torch.randn(400, 5)
    labels = (logits + 3 * torch.randn(400, 5)).argmax(dim=1)
    model = nn.Linear(5, 5, bias=False)
    model.weight.data = torch.eye(5)
    mmcalib.calibrate(model, [(logits, labels)])
    with pytest.raises(ValueError, match=r'predicted as another.*in the same order'):
        mmcalib.calibrate(model, [(logits, torch.tensor(order)[labels])])


@pytest.mark.parametrize('method', ['temperature', 'ets'])
def test_calibrate_calibrated_model_raises(method):
    network, inputs, labels = make_data()
    loader = make_loader(inputs, labels)
    calibrated = mmcalib.calibrate(network, loader, method=method)
    with pytest.raises(ValueError, match='calibrated already'):
        mmcalib.calibrate(calibrated.model, loader)


def test_calibrate_function_as_model_raises():
    network, inputs, labels = make_data()
    with pytest.raises(TypeError, match='must be a torch'):
        mmcalib.calibrate(network.forward, make_loader(inputs, labels))


def test_calibrate_class_as_method_raises():
    network, inputs, labels = make_data()
    with pytest.raises(TypeError, match=r"'temperature' or TemperatureScaler\(\)"):
        mmcalib.calibrate(network, make_loader(inputs, labels), method=TemperatureScaler)


class CountingNetwork(Network):
    """A network whose logits depend on how many batches it has seen."""

    count = 0

    def forward(self, x):
        self.count += 1
        return super().forward(x) * (1 + self.count)


def test_calibrate_model_that_predicts_otherwise_again_raises():
    network, inputs, labels = make_data()
    counting = CountingNetwork()
    counting.load_state_dict(network.state_dict())
    with pytest.raises(ValueError, match='again'):
        mmcalib.calibrate(counting, make_loader(inputs, labels))


def unread_loader():
    """Yield nothing, and fail the test if a batch is asked for."""
    pytest.fail('the loader was read')
    yield


def test_calibrate_model_that_cannot_be_copied_raises_before_reading():
    network, inputs, labels = make_data()
    network.body.lock = threading.Lock()
    with pytest.raises(ValueError, match=r'body\.lock.*copy=False'):
        mmcalib.calibrate(network, unread_loader())
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels), copy=False)
    assert calibrated.model is network
    assert calibrated.folded_into == ['fc']


def add_hook_on_model(network):
    network.fc.register_forward_hook(
        lambda module, inputs, output: output / network.fc.weight.norm()
    )


def add_forward_of_layers(network):
    network.forward = lambda x: network.fc(network.norm(network.body(x)).relu())


def add_wrapped_forward(network):
    forward = network.forward

    @functools.wraps(forward)
    def wrapped(*args, **kwargs):
        return forward(*args, **kwargs)

    network.forward = wrapped


def add_hook_with_helper(network):
    def last_layer(x):
        return network.fc(x)

    network.fc.register_forward_pre_hook(lambda module, inputs: last_layer and None)


def add_hook_with_default(network):
    network.register_forward_pre_hook(lambda module, inputs, layers=(network.body, 3): None)


def add_hook_with_buffer(network):
    mean = network.norm.running_mean
    network.register_forward_pre_hook(lambda module, inputs: mean is None or None)


CALLS = (add_forward_of_layers, add_wrapped_forward)
REFERENCES = (
    add_hook_on_model,
    add_hook_with_helper,
    add_hook_with_default,
    add_hook_with_buffer,
)


@pytest.mark.parametrize('add_call', CALLS)
def test_calibrate_code_that_calls_model_raises_before_it_runs(add_call):
    network, inputs, labels = make_data()
    add_call(network)
    state = copy.deepcopy(network.train().state_dict())
    with pytest.raises(ValueError, match=r'given model.*copy=False'):
        mmcalib.calibrate(network, make_loader(inputs, labels))
    # In training mode, a batch that it runs on would change its statistics.
    torch.testing.assert_close(network.state_dict(), state, rtol=0, atol=0)


def test_calibrate_logits_that_call_model_raises():
    network, inputs, labels = make_data()
    loader = make_loader(inputs, labels)
    with pytest.raises(ValueError, match=r'logits=.*given model.*copy=False'):
        mmcalib.calibrate(network, loader, logits=lambda output: network.fc(output.repeat(1, 2)))


@pytest.mark.parametrize('add_reference', REFERENCES)
def test_calibrate_code_that_refers_to_model_predicts_scaled_probabilities(add_reference):
    network, inputs, labels = make_data()
    add_reference(network)
    state = copy.deepcopy(network.state_dict())
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels))
    assert_predicts_scaled_probabilities(calibrated, network, inputs)
    torch.testing.assert_close(network.state_dict(), state, rtol=0, atol=0)


@pytest.mark.parametrize('add_reference', [*CALLS, *REFERENCES])
def test_calibrate_code_that_refers_to_model_in_place_predicts_scaled_probabilities(add_reference):
    network, inputs, labels = make_data()
    add_reference(network)
    before = {name: value.clone() for name, value in network.named_parameters()}
    with torch.no_grad():
        logits = network.eval()(inputs)
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels), copy=False)
    with torch.no_grad():
        actual = calibrated.model(inputs).softmax(dim=1)
    expected = calibrated.scaler.predict_proba(logits)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
    changed = []
    for name, value in network.named_parameters():
        if not torch.equal(value, before[name]):
            changed.append(name)
    assert changed == (['fc.weight', 'fc.bias'] if calibrated.folded_into else [])
