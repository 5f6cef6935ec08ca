"""The layer that a scaling is folded into, and the models that it is attached to instead."""

import copy
import functools
import math

import pytest
import torch
from overconfident_networks import (
    OVERCONFIDENCE,
    SHAPES,
    Network,
    assert_predicts_scaled_probabilities,
    draw_classes,
    make_data,
    make_loader,
)
from torch import nn
from torch.nn.utils import prune

import mmcalib
from mmcalib.calibration.prove import largest_difference
from mmcalib.posthoc.attached import AttachedScaling, CalibratedOutput


def test_calibrate_model_that_is_one_layer_folds():
    network, inputs, labels = make_data()
    features = network.features(inputs).detach()
    calibrated = mmcalib.calibrate(network.fc, make_loader(features, labels), method='vector')
    assert calibrated.folded_into == ['']
    assert 'Folded into the model' in str(calibrated)
    assert not torch.equal(calibrated.model.weight, network.fc.weight)


def test_calibrate_half_precision_attaches():
    network, inputs, labels = make_data()
    calibrated = mmcalib.calibrate(network.bfloat16(), make_loader(inputs.bfloat16(), labels))
    reason = "torch.bfloat16 rounds the scaled weights of layer 'fc' by too much"
    assert calibrated.attached == reason
    assert calibrated.difference < 1e-4


def test_calibrate_half_precision_layer_as_model_names_the_model():
    network, inputs, labels = make_data()
    features = network.features(inputs).detach()
    loader = make_loader(features.bfloat16(), labels)
    calibrated = mmcalib.calibrate(network.fc.bfloat16(), loader)
    expected = 'torch.bfloat16 rounds the scaled weights of the model by too much'
    assert calibrated.attached == expected


class TwoHeads(nn.Module):
    """A model with two heads, of which the sign of the last input chooses one for each image."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.positive = copy.deepcopy(network.fc)
        self.negative = copy.deepcopy(network.fc)
        self.negative.weight.data *= 2

    def forward(self, x):
        features = self.network.features(x[:, :5])
        is_positive = x[:, 5:] > 0
        if is_positive.all():
            return self.positive(features)
        if not is_positive.any():
            return self.negative(features)
        return torch.where(is_positive, self.positive(features), self.negative(features))


# The sign of the last input of each of 160 images, in batches of 16.
SIGNS = {
    'halves': [1] * 80 + [-1] * 80,
    'one_batch_in_the_middle': [1] * 64 + [-1] * 32 + [1] * 64,
    'last_batch': [1] * 144 + [-1] * 16,
    'one_batch_of_ten': [1] * 112 + [-1] * 16 + [1] * 32,
    'mixed_in_a_batch': [1] * 72 + [-1] * 16 + [1] * 72,
}


@pytest.mark.parametrize('order', SIGNS)
def test_calibrate_two_heads_predicts_scaled_probabilities(order):
    network, inputs, labels = make_data(num_images=160)
    signs = torch.tensor(SIGNS[order], dtype=torch.float32)[:, None]
    inputs = torch.cat([inputs, signs], dim=1)
    model = TwoHeads(network)
    loader = make_loader(inputs, labels)
    calibrated = mmcalib.calibrate(model, loader)
    assert_predicts_scaled_probabilities(calibrated, model, inputs)
    actual = mmcalib.evaluate(calibrated.model, loader, ['NLL'])['NLL']
    standard_error = calibrated.errors['after']['NLL']
    assert actual == pytest.approx(calibrated.after['NLL'], abs=standard_error)


class Combination(nn.Module):
    """A model of two layers with an output per class, whose outputs a function combines."""

    def __init__(self, network, combine, *, bias=True):
        super().__init__()
        layer = type(network.fc)
        kernel_size = [1] if layer is not nn.Linear else []
        self.network = network
        self.wide = layer(5, 4, *kernel_size, bias=bias)
        self.deep = network.fc
        network.fc = nn.Identity()
        self.combine = combine

    def forward(self, x):
        deep = self.deep(self.network.features(x))
        return self.combine(self.wide(x), deep)


class AddedLayers(nn.Module):
    """A model that adds the outputs of a list of layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 4) for _ in range(3)])
        for layer in self.layers:
            layer.weight.data *= 8

    def forward(self, x):
        return sum(layer(x) for layer in self.layers)


def add(wide, deep):
    return wide + deep


def calibrate_on_drawn_labels(model, inputs, method='temperature'):
    """Return a calibration on labels that are as likely as a third of the logits say."""
    with torch.no_grad():
        labels = draw_classes(model.eval()(inputs) / OVERCONFIDENCE)
    calibrated = mmcalib.calibrate(model, make_loader(inputs, labels), method=method)
    assert_predicts_scaled_probabilities(calibrated, model, inputs)
    return calibrated


def calibrate_combination(combine, method='temperature', shape=(), **options):
    network, inputs, _ = make_data(shape, num_images=120)
    return calibrate_on_drawn_labels(Combination(network, combine, **options), inputs, method)


@pytest.mark.parametrize('options', [{}, {'bias': False}, {'shape': (6, 7)}])
def test_calibrate_sum_of_two_layers_folds_temperature(options):
    calibrated = calibrate_combination(add, **options)
    assert calibrated.folded_into == ['wide', 'deep']


def test_calibrate_sum_after_hidden_layer_of_as_many_outputs_folds():
    network, inputs, _ = make_data(num_images=120)
    network.body = nn.Linear(5, 4)
    network.norm = nn.Identity()
    network.fc = nn.Linear(4, 4)
    network.fc.weight.data *= 8
    calibrated = calibrate_on_drawn_labels(Combination(network, add), inputs)
    assert calibrated.folded_into == ['wide', 'deep']


def test_calibrate_list_of_layers_that_are_added_folds():
    _, inputs, _ = make_data(num_images=120)
    calibrated = calibrate_on_drawn_labels(AddedLayers(), inputs)
    assert calibrated.folded_into == ['layers.2', 'layers.1', 'layers.0']


@pytest.mark.parametrize('method', ['temperature', 'vector'])
@pytest.mark.parametrize(
    'combine',
    [
        lambda wide, deep: wide.tanh() + deep,
        lambda wide, deep: 9 * (wide + deep).tanh(),
        lambda wide, deep: wide * deep + deep.sigmoid(),
        lambda wide, deep: (wide.softmax(dim=1) + deep.softmax(dim=1)).log(),
    ],
    ids=['tanh of one', 'tanh of the sum', 'product', 'mean of probabilities'],
)
def test_calibrate_nonlinear_combination_attaches_and_says_what_was_tried(combine, method):
    calibrated = calibrate_combination(combine, method)
    assert calibrated.folded_into == []
    expected = "halving the weights of layers 'wide' and 'deep', alone or together, does not halve"
    assert expected in calibrated.attached


@pytest.mark.parametrize('method', ['temperature', 'vector'])
@pytest.mark.parametrize('combine', [torch.mul, torch.maximum])
def test_calibrate_product_or_maximum_predicts_scaled_probabilities(combine, method):
    calibrated = calibrate_combination(combine, method)
    # One layer halves a product, and a positive factor goes through a maximum.
    folded_into = ['wide'] if combine is torch.mul else ['wide', 'deep']
    if method == 'temperature':
        assert calibrated.folded_into == folded_into


def test_calibrate_layer_beside_the_logits_is_not_scaled():
    calibrated = calibrate_combination(lambda wide, deep: deep.tanh() + 0 * wide)
    expected = "halving the weights of layers 'wide' and 'deep', each alone, does not halve its"
    assert expected in calibrated.attached


class CappedLogits(nn.Module):
    """A model whose logits have a largest and a smallest value."""

    def __init__(self, network, limit):
        super().__init__()
        self.network = network
        self.limit = limit

    def forward(self, x):
        return self.network(x).clamp(-self.limit, self.limit)


@pytest.mark.parametrize('shape', [(), (6, 7)])
@pytest.mark.parametrize('sign', [1, -1])
def test_calibrate_logits_capped_in_a_late_batch_attaches(shape, sign):
    network, inputs, labels = make_data(shape, num_images=160)
    with torch.no_grad():
        logits = network(inputs)
    highest = (sign * logits).flatten(1).amax(dim=1)
    order = highest.argsort()
    # The largest logits come in the last batch but one.
    order = torch.cat([order[:128], order[144:], order[128:144]])
    limit = highest.sort().values[143:146].mean().item()
    model = CappedLogits(network, limit)
    loader = make_loader(inputs[order], labels[order])
    calibrated = mmcalib.calibrate(model, loader, method='vector')
    assert calibrated.attached is not None
    assert_predicts_scaled_probabilities(calibrated, model, inputs)


class CappedSite(nn.Module):
    """A model that caps the logits of some images, those whose last input is above 0."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        logits = self.network(x[:, :5])
        is_capped = x[:, 5:] > 0
        return torch.where(is_capped, 2 * torch.tanh(logits / 2), logits)


def make_sites(model_type, first=300, last=400):
    """Return a model, inputs and labels of 1,200 images, of which one site is predicted apart."""
    network, inputs, _ = make_data(num_images=1200)
    signs = -torch.ones(1200, 1)
    signs[first:last] = 1
    inputs = torch.cat([inputs, signs], dim=1)
    model = model_type(network).eval()
    with torch.no_grad():
        labels = draw_classes(model(inputs) / OVERCONFIDENCE)
    return model, inputs, labels


def test_calibrate_site_that_no_whole_batch_shows_attaches():
    """The site is of two batches of 24, and its logits are neither the highest nor the lowest."""
    model, inputs, labels = make_sites(CappedSite)
    loader = make_loader(inputs, labels, batch_size=50)
    calibrated = mmcalib.calibrate(model, loader)
    assert calibrated.attached is not None
    assert_predicts_scaled_probabilities(calibrated, model, inputs)


class NormalizedByBatch(nn.Module):
    """A model whose logits of an image depend on the others of its batch."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        features = self.network.features(x[:, :5])
        return self.network.fc(features - features.mean(dim=0))


class SqueezedOutput(NormalizedByBatch):
    """A model that returns no axis of images for one image."""

    def forward(self, x):
        return self.network(x[:, :5]).squeeze()


@pytest.mark.parametrize('model_type', [NormalizedByBatch, SqueezedOutput])
def test_calibrate_model_that_takes_no_single_image_is_proven_on_whole_batches(model_type):
    model, inputs, labels = make_sites(model_type)
    loader = make_loader(inputs, labels, batch_size=50)
    calibrated = mmcalib.calibrate(model, loader)
    assert calibrated.folded_into == ['network.fc']
    proven_images = calibrated.to_dict()['proven_images']
    assert 150 <= proven_images <= 500
    assert proven_images % 50 == 0
    assert f'on {proven_images} of 1,200 predictions.' in str(calibrated)


def test_calibrate_batches_as_dicts_are_proven_on_images_of_each():
    network, inputs, labels = make_data(num_images=120)
    model = Named(network)
    batches = [
        {'x': inputs[row : row + 4], 'names': list('abcd'), 'labels': labels[row : row + 4]}
        for row in range(0, 120, 4)
    ]
    calibrated = mmcalib.calibrate(model, batches)
    assert calibrated.to_dict()['proven_images'] == 120


def add_hook_that_reads_given_weights(network):
    network.fc.register_forward_hook(lambda module, inputs, output: normalized(output, network.fc))


def add_closure_that_reads_given_weights(network):
    weight = network.fc.weight
    network.fc.forward = functools.partial(
        lambda layer, x: nn.functional.linear(x, layer.weight) / weight.norm(), network.fc
    )


def normalized(logits, layer):
    return logits / layer.weight.norm()


def predict_with_loaded_weights(calibrated, inputs, add_reader):
    """Return the probabilities of a new model, whose own code reads its own weights."""
    new_network = Network().eval()
    add_reader(new_network)
    scaling = AttachedScaling(calibrated.method)
    model = new_network if calibrated.folded_into else CalibratedOutput(new_network, scaling).eval()
    model.load_state_dict(calibrated.model.state_dict())
    with torch.no_grad():
        return model(inputs).softmax(dim=1)


@pytest.mark.parametrize(
    'add_reader', [add_hook_that_reads_given_weights, add_closure_that_reads_given_weights]
)
def test_calibrate_code_that_reads_given_weights_attaches_and_says_so(add_reader):
    network, inputs, labels = make_data()
    add_reader(network)
    state = copy.deepcopy(network.state_dict())
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels), method='temperature')
    assert calibrated.folded_into == []
    assert "reads weights of the given model, of layer 'fc'" in str(calibrated)
    assert_predicts_scaled_probabilities(calibrated, network, inputs)
    with torch.no_grad():
        expected = calibrated.scaler.predict_proba(network(inputs))
    actual = predict_with_loaded_weights(calibrated, inputs, add_reader)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(network.state_dict(), state, rtol=0, atol=0)


class ReadsOwnWeights(Network):
    """A network that predicts by a hook of its own, and by a second layer of the same weight."""

    def __init__(self):
        super().__init__()
        self.fc.register_forward_hook(self.predict_again)
        self.tied = nn.Linear(8, 4, bias=False)
        self.tied.weight = self.fc.weight

    def predict_again(self, module, inputs, output):
        return nn.functional.linear(inputs[0], self.fc.weight, self.fc.bias)

    def forward(self, x):
        return super().forward(x) + self.tied(self.features(x))


@pytest.mark.parametrize('method', ['temperature', 'vector'])
def test_calibrate_hook_and_tied_layer_of_own_weights_fold(method):
    network, inputs, labels = make_data()
    own_network = ReadsOwnWeights().eval()
    own_network.load_state_dict(network.state_dict(), strict=False)
    calibrated = mmcalib.calibrate(own_network, make_loader(inputs, labels), method=method)
    assert calibrated.folded_into == ['fc']
    assert_predicts_scaled_probabilities(calibrated, own_network, inputs)
    new_network = ReadsOwnWeights().eval()
    new_network.load_state_dict(calibrated.model.state_dict())
    torch.testing.assert_close(new_network(inputs), calibrated.model(inputs))


def make_frozen(network):
    return network.requires_grad_(False)


def make_in_inference_mode(network):
    with torch.inference_mode():
        return copy.deepcopy(network)


@pytest.mark.parametrize('prepare', [make_frozen, make_in_inference_mode, nn.Module.train])
def test_calibrate_given_weights_are_the_same_tensors_after_fold(prepare):
    network, inputs, labels = make_data()
    network = prepare(network)
    pointers = {key: value.data_ptr() for key, value in network.state_dict().items()}
    state = copy.deepcopy(network.state_dict())
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels), method='vector')
    assert calibrated.folded_into == ['fc']
    assert {key: value.data_ptr() for key, value in network.state_dict().items()} == pointers
    torch.testing.assert_close(dict(network.state_dict()), dict(state), rtol=0, atol=0)


def test_calibrate_code_that_fails_for_other_given_weights_leaves_these():
    network, inputs, labels = make_data()
    state = copy.deepcopy(network.state_dict())

    def check(*_):
        torch.testing.assert_close(network.state_dict(), state, rtol=0, atol=0)

    network.fc.register_forward_hook(check)
    with pytest.raises(AssertionError):
        mmcalib.calibrate(network, make_loader(inputs, labels))
    torch.testing.assert_close(network.state_dict(), state, rtol=0, atol=0)


class Named(nn.Module):
    """A model that gets names of its images beside them."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x, names):
        assert len(names) == len(x)
        return self.network(x)


class TransposedConvolution(nn.Module):
    """A model whose last layer is a transposed convolution, as that of MONAI's UNet."""

    def __init__(self, shape, *, groups=1, bias=True):
        super().__init__()
        layers = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
        self.network = Network(shape, num_logits=8)
        self.last = layers[len(shape)](
            8, 4, kernel_size=3, stride=2, padding=1, output_padding=1, groups=groups, bias=bias
        )

    def forward(self, x):
        return self.last(self.network(x))


@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize(
    ('options', 'shape', 'method'),
    [
        ({}, (6,), 'matrix'),
        ({}, (6, 7), 'temperature'),
        ({}, (3, 4, 5), 'vector'),
        ({'groups': 4}, (6,), 'temperature'),
        ({'groups': 4}, (6, 7), 'vector'),
        ({'groups': 4}, (3, 4, 5), 'matrix'),
        ({'bias': False}, (6,), 'vector'),
        ({'bias': False}, (6, 7), 'matrix'),
        ({'bias': False}, (3, 4, 5), 'temperature'),
    ],
)
def test_calibrate_transposed_convolution_predicts_scaled_probabilities(options, shape, method):
    _, inputs, _ = make_data(shape, num_images=40)
    model = TransposedConvolution(shape, **options).eval()
    with torch.no_grad():
        labels = draw_classes(model(inputs) / OVERCONFIDENCE)
    calibrated = mmcalib.calibrate(model, make_loader(inputs, labels), method=method)
    assert_predicts_scaled_probabilities(calibrated, model, inputs)
    # Classes are scaled and shifted by a layer with a bias and without groups alone.
    can_fold = method == 'temperature' or options == {}
    assert calibrated.folded_into == (['last'] if can_fold else [])


def add_weight_norm(network):
    nn.utils.weight_norm(network.fc)


def prune_weights(network):
    prune.random_unstructured(network.fc, 'weight', amount=0.2)


# Tensors that are computed from others, which copy.deepcopy refuses.
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('change_weights', [add_weight_norm, prune_weights])
@pytest.mark.parametrize('method', ['temperature', 'vector'])
def test_calibrate_computed_weight_attaches(method, change_weights):
    network, inputs, labels = make_data()
    change_weights(network)
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels), method=method)
    assert_predicts_scaled_probabilities(calibrated, network, inputs)
    assert calibrated.folded_into == []
    assert "the weight of layer 'fc' is shared, quantized, or computed" in calibrated.attached


class QuantizedTensor(torch.Tensor):
    """A weight of a library that quantizes: layers take it, and arithmetic fails."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if 'div' in getattr(function, '__name__', ''):
            raise NotImplementedError('a quantized weight has no division')
        result = super().__torch_function__(function, types, args, kwargs)
        return result.as_subclass(torch.Tensor) if function is nn.functional.linear else result

    def __deepcopy__(self, memo):
        return nn.Parameter(self.detach().clone(), requires_grad=False)


@pytest.mark.parametrize('method', ['temperature', 'vector'])
def test_calibrate_quantized_weight_attaches(method):
    network, inputs, labels = make_data()
    quantized = network.fc.weight.detach().as_subclass(QuantizedTensor)
    network.fc.weight = nn.Parameter(quantized, requires_grad=False)
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels), method=method)
    assert_predicts_scaled_probabilities(calibrated, network, inputs)
    assert calibrated.folded_into == []
    assert "the weight of layer 'fc' is shared, quantized, or computed" in calibrated.attached


@pytest.mark.parametrize('method', ['temperature', 'vector'])
def test_calibrate_model_with_stored_features_folds(method):
    network, inputs, labels = make_data()
    network.stored_features = network.body(inputs)
    network.stored_logits = {'all': [network.fc(network.body(inputs))]}
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels), method=method)
    assert_predicts_scaled_probabilities(calibrated, network, inputs)
    assert calibrated.folded_into == ['fc']


@pytest.mark.parametrize('kind', SHAPES)
def test_calibrate_folded_matrix_is_saved_by_safetensors(kind, tmp_path):
    safetensors = pytest.importorskip('safetensors.torch')
    network, inputs, labels = make_data(SHAPES[kind], num_images=120)
    calibrated = mmcalib.calibrate(network, make_loader(inputs, labels), method='matrix')
    assert calibrated.folded_into == ['fc']
    state = calibrated.model.state_dict()
    assert all(value.is_contiguous() for value in state.values())
    safetensors.save_file(state, tmp_path / 'model.safetensors')


def test_largest_difference_nan_is_infinite():
    ones = torch.ones(1)
    nan = torch.full((1,), math.nan)
    assert largest_difference([ones, ones], [ones, nan]) == math.inf


def test_calibrate_single_images_between_zero_and_one_are_not_warned_of(recwarn):
    """Of two classes, the logits of one image may sum to 1 by chance."""
    torch.manual_seed(0)
    labels = torch.randint(0, 2, (300,))
    logits = 2 * nn.functional.one_hot(labels, 2) + torch.randn(300, 2)
    logits[::3] = torch.tensor([0.25, 0.75])
    model = nn.Linear(2, 2)
    nn.init.eye_(model.weight)
    nn.init.zeros_(model.bias)
    calibrated = mmcalib.calibrate(model, [(logits, labels)])
    assert calibrated.folded_into == ['']
    assert not [warning for warning in recwarn if 'probabilities' in str(warning.message)]
