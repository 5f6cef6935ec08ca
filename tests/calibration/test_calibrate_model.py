"""Calibrating any torch model in one call, without OpenMMLab."""

import copy
import functools
import inspect
import pickle
import random
import re
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader, TensorDataset

import mmcalib
from mmcalib.posthoc import SCALERS, TemperatureScaler
from mmcalib.posthoc.attached import AttachedScaling, CalibratedOutput, scaling_module

SHAPES = {'classifier': (), 'segmentor': (6, 7), 'volume': (3, 4, 5)}


class Net(nn.Module):
    """Far too sure of linear functions of its inputs, for images, maps or volumes."""

    def __init__(self, shape=(), num_logits=4, *, cosine=False, key=None):
        super().__init__()
        kind = [nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d][len(shape)]
        self.body = kind(5, 8, *[1] * bool(shape))
        self.norm = [nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d][len(shape)](8)
        self.fc = kind(8, num_logits, *[1] * bool(shape))
        self.cosine, self.key = cosine, key
        self.fc.weight.data *= 8

    def forward(self, x):
        features = self.norm(self.body(x)).relu()
        logits = self.fc(features)
        if self.cosine:
            logits = 9 * nn.functional.normalize(logits, dim=1)
        dicts = {'out': {'out': logits, 'aux': 0}, 'a dict': {'logits': logits, 'aux': 0}}
        return {None: logits, **dicts}.get(self.key, SimpleNamespace(logits=logits, loss=None))


def data(shape=(), *, n=60, num_logits=4, sigmoids=False, seed=0):
    """Inputs of a network with labels drawn from probabilities less sure than its own."""
    torch.manual_seed(seed)
    net = Net(shape, num_logits).eval()
    inputs = torch.randn(n, 5, *shape)
    with torch.no_grad():
        logits = net(inputs) / 3
    if sigmoids or num_logits == 1:
        return net, inputs, (torch.rand(logits.shape) < logits.sigmoid()).long()
    probs = logits.softmax(1).movedim(1, -1)
    labels = torch.distributions.Categorical(probs=probs).sample()
    return net, inputs, labels


def loader_of(inputs, labels, *, batch_size=16, **options):
    return DataLoader(TensorDataset(inputs, labels), batch_size=batch_size, **options)


@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize('method', ['temperature', 'vector', 'matrix', 'ets', 'isotonic'])
@pytest.mark.parametrize('kind', SHAPES)
def test_the_copy_predicts_the_scaled_probabilities(kind, method):
    net, inputs, labels = data(SHAPES[kind], n=240)
    found = mmcalib.calibrate(net, loader_of(inputs, labels), method=method)
    with torch.no_grad():
        logits, calibrated = net(inputs), found.model(inputs)
    images = torch.arange(240).repeat_interleave(labels[0].numel())
    rows = logits.movedim(1, -1).flatten(0, -2)
    expected = SCALERS[method]().fit(rows, labels.flatten(), images).predict_proba(logits)
    torch.testing.assert_close(calibrated.softmax(1), expected, rtol=1e-3, atol=1e-4)
    folded = method not in ('ets', 'isotonic')
    assert found.folded_into == ['fc'] * folded and bool(found.attached) != folded
    assert found.difference < 1e-4 and found.after['NLL'] < found.before['NLL']
    before = mmcalib.metrics.measure(logits.softmax(1), labels, ['ECE', 'NLL', 'Brier', 'accuracy'])
    assert {n: found.before[n] for n in before} == pytest.approx(before, rel=1e-4)
    assert 0 < found.errors['after']['ECE'] < 10 and found.num_predictions == labels.numel()
    assert re.search(r'before +[\d.]+ ± .*\nafter ', str(found))
    if method == 'temperature':
        error = found.scaler.standard_error(rows, labels.flatten(), images)
        assert found.standard_error == pytest.approx(error, rel=1e-4)
        assert f' ± {error:.2g} (standard error over 240 images), fitted' in str(found)


def test_the_figures_are_those_of_a_loop():
    """Cross-fitted by folds of groups, in the order of these."""
    net, inputs, labels = data(n=80)
    groups = [f'scan {number // 4}' for number in range(80)]
    found = mmcalib.calibrate(net, loader_of(inputs, labels), groups=groups)
    with torch.no_grad():
        logits = net(inputs)
    fold = torch.from_numpy(np.random.RandomState(0).permutation(20) % 5).repeat_interleave(4)
    scaled = torch.empty_like(logits)
    for number in range(5):
        scaler = TemperatureScaler().fit(logits[fold != number], labels[fold != number])
        scaled[fold == number] = scaler.transform(logits[fold == number])
    nll = nn.functional.cross_entropy(scaled, labels, reduction='none').double()
    assert found.after['NLL'] == pytest.approx(nll.mean().item(), rel=1e-5)
    by_group = nll.view(20, 4).mean(dim=1)
    assert found.errors['after']['NLL'] == pytest.approx((by_group.std() / 20**0.5).item(), rel=0.2)
    assert found.num_groups == 20


@pytest.mark.parametrize('method', ['temperature', 'vector', 'isotonic'])
@pytest.mark.parametrize('kind', ['classifier', 'segmentor'])
def test_the_order_of_the_images_does_not_matter(kind, method, monkeypatch):
    monkeypatch.setattr('mmcalib.calibration.calibrate.NUM_SAMPLES', 500)
    net, inputs, labels = data(SHAPES[kind])
    found = []
    for seed in (None, 1, 2):
        generator = torch.Generator().manual_seed(seed or 0)
        options = dict(shuffle=seed is not None, generator=generator)
        found.append(mmcalib.calibrate(net, loader_of(inputs, labels, **options), method=method))
    for other in found[1:]:
        assert other.after == pytest.approx(found[0].after, rel=1e-4)
        for name, value in found[0].scaler.tensors.items():
            torch.testing.assert_close(other.scaler.tensors[name], value, rtol=1e-4, atol=1e-5)


def test_the_given_model_and_the_random_states_are_as_before():
    net, inputs, labels = data()
    net.train()
    net.body.eval()
    net.fc.bias.requires_grad = False
    seen = []
    net.fc.register_forward_hook(lambda *_: seen.append(1))
    before = copy.deepcopy(net.state_dict())
    states = [torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()]
    for method in ('vector', 'ets'):
        found = mmcalib.calibrate(net, loader_of(inputs, labels, shuffle=True), method=method)
        assert not any(module.training for module in found.model.modules())
    assert net.training and not net.body.training and net.fc.training
    assert not net.fc.bias.requires_grad and len(net.fc._forward_hooks) == 1
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert torch.equal(states[0], torch.get_rng_state()) and states[2] == random.getstate()
    assert (states[1] == np.random.get_state()[1]).all()


@pytest.mark.parametrize('key', ['out', 'a dict', 'an object'])
def test_what_the_logits_are_of(key):
    net, inputs, labels = data((6, 7))
    net.key = key
    loader, out = loader_of(inputs, labels), {}

    def logits(output):
        return output.logits if key == 'an object' else output['out' if key == 'out' else 'logits']

    for method in ('temperature', 'ets'):
        found = mmcalib.calibrate(net, loader, method=method)
        output = found.model(inputs)
        out[method] = logits(output)
        assert (output.loss is None) if key == 'an object' else (output['aux'] == 0)
        named = mmcalib.calibrate(net, loader, method=method, logits=logits)
        assert named.after == found.after
    named = named.model(inputs)  # attached behind a function, the logits alone
    torch.testing.assert_close(named, out['ets'])


def test_a_model_that_is_one_layer():
    net, inputs, labels = data()
    loader = loader_of(net.norm(net.body(inputs)).relu().detach(), labels)
    found = mmcalib.calibrate(net.fc, loader, method='vector')
    assert found.folded_into == [''] and 'Folded into the model' in str(found)
    assert not torch.equal(found.model.weight, net.fc.weight)


def test_dicts_as_batches_are_keywords_and_a_scaler_has_options():
    net, inputs, labels = data()
    batches = [{'x': x, 'labels': y} for x, y in loader_of(inputs, labels)]
    after = []
    for given in (batches, iter(batches), loader_of(inputs, labels)):
        found = mmcalib.calibrate(net, given, method=TemperatureScaler(criterion='ece-grid'))
        after.append(found.after)
    assert after[0] == after[1] == after[2]
    temperature = 10 * found.scaler.temperature_
    assert round(temperature) == pytest.approx(temperature)


@pytest.mark.parametrize('shape', [(), (6, 7)])
def test_ignored_labels_do_not_count(shape):
    net, inputs, labels = data(shape)
    labels[:, ...][::3] = -100
    found = mmcalib.calibrate(net, loader_of(inputs, labels), ignore_index=-100)
    assert found.num_predictions == int((labels >= 0).sum()) and found.num_groups == 40
    kept = labels.view(60, -1)[:, 0] >= 0
    other = mmcalib.calibrate(net, loader_of(inputs[kept], labels[kept]))
    assert found.after == pytest.approx(other.after)


@pytest.mark.parametrize('num_labels', [1, 3])
@pytest.mark.parametrize('method', ['temperature', 'vector', 'platt', 'isotonic'])
def test_each_sigmoid_has_a_scaling(method, num_labels):
    net, inputs, labels = data(n=150, num_logits=num_labels, sigmoids=True)
    labels[5, -1] = -1
    given = labels if num_labels > 1 else labels[:, 0].float()
    found = mmcalib.calibrate(net, loader_of(inputs, given), method=method, ignore_index=-1)
    with torch.no_grad():
        logits, calibrated = net(inputs), found.model(inputs)
    for number in range(num_labels):
        kept = labels[:, number] >= 0
        scaler = SCALERS[method]().fit(logits[kept, number, None], labels[kept, number])
        expected = scaler.predict_proba(logits[:, number, None])[:, 1]
        torch.testing.assert_close(calibrated[:, number].sigmoid(), expected, rtol=1e-3, atol=1e-4)
    assert found.folded_into == ['fc'] * (method in ('temperature', 'vector'))
    assert found.num_predictions == 150 * num_labels - 1
    assert found.after['NLL'] < found.before['NLL']


def test_a_batch_of_one_label_each_is_of_several_labels():
    net, inputs, labels = data(n=150, num_logits=3, sigmoids=True)
    found = [mmcalib.calibrate(net, loader_of(inputs, labels, batch_size=n)) for n in (1, 150)]
    assert found[0].after == pytest.approx(found[1].after, rel=1e-4)


def test_auto_chooses():
    net, inputs, labels = data(n=400)
    found = mmcalib.calibrate(net, loader_of(inputs, labels), method='auto')
    assert [c['method'] for c in found.candidates][:2] == ['none', 'temperature']
    assert found.scaler.method == 'temperature' and found.folded_into == ['fc']
    effect = found.effects['fitted']
    effect = replace(effect, after={**found.after, 'NLL': 9.0, 'accuracy': 10.0})
    worse = replace(found, effects={'fitted': effect})
    assert 'Worse' not in str(found) and re.search(r'Worse.* NLL .* 9.*accuracy .* 10', str(worse))
    net.fc.weight.data /= 3
    net.fc.bias.data /= 3
    none = mmcalib.calibrate(net, loader_of(inputs, labels), method='auto')
    assert none.scaler is None and none.before == none.after and 'No scaling improves' in str(none)


@pytest.mark.parametrize('truth', [0.6, 1.0, 1.1, 1.5])
def test_auto_few_groups_takes_what_the_temperature_s_standard_error_says(truth):
    """And never sharpens, which few groups do not tell to hold on others."""
    chosen = []
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        logits = 2 * torch.randn(200, 4, generator=generator)
        labels = (logits / truth).softmax(dim=1).multinomial(1, generator=generator)[:, 0]
        options = dict(groups=[f'video {row // 40}' for row in range(200)])
        loader = loader_of(logits, labels)
        found = mmcalib.calibrate(nn.Identity(), loader, method='auto', **options)
        fixed = mmcalib.calibrate(nn.Identity(), loader, **options)
        temperature = fixed.scaler.temperature_
        errors = np.log(temperature) / (fixed.standard_error / temperature)
        assert (found.scaler is not None) == (errors > 2)
        assert 'only a temperature is taken' in str(found)
        chosen.append(found.scaler is not None)
    assert any(chosen) == (truth > 1)
    assert all(chosen) == (truth == 1.5)


@pytest.mark.parametrize(
    'method', ['temperature', 'ets', 'isotonic', 'class-temperatures', 'class-conditional']
)
def test_an_attached_calibration_is_saved_exported_and_trained(method, tmp_path):
    net, inputs, labels = data()
    net.cosine = True
    found = mmcalib.calibrate(net, loader_of(inputs, labels), method=method)
    model = found.model
    assert method != 'temperature' or 'no linear layer' in found.attached
    torch.save(model.state_dict(), tmp_path / 'calibrated.pth')
    other = CalibratedOutput(Net(cosine=True), AttachedScaling(method)).eval()
    other.load_state_dict(torch.load(tmp_path / 'calibrated.pth'))
    torch.testing.assert_close(other(inputs), model(inputs))
    exported = torch.export.export(model, (inputs[:7],), strict=False).run_decompositions()
    torch.testing.assert_close(exported.module()(inputs[:7]), model(inputs[:7]))
    model(inputs).sum().backward()
    assert net.fc.weight.grad is None and model.model.fc.weight.grad is not None


def test_calibrate_half_precision_layer_as_model_names_the_model():
    net, inputs, labels = data()
    features = net.norm(net.body(inputs)).relu().detach()
    loader = loader_of(features.bfloat16(), labels)
    actual = mmcalib.calibrate(net.fc.bfloat16(), loader)
    expected = 'torch.bfloat16 rounds the scaled weights of the model by too much'
    assert actual.attached == expected


@pytest.mark.parametrize('images_per_group', [1, 30])
def test_calibrate_several_labels_auto_few_groups_text_says_what_is_compared(images_per_group):
    """A temperature of each label is chosen by its NLL, also below ten groups."""
    net, inputs, labels = data(n=150, num_logits=3, sigmoids=True)
    groups = [index // images_per_group for index in range(150)]
    actual = mmcalib.calibrate(net, loader_of(inputs, labels), method='auto', groups=groups)
    has_few_groups = images_per_group == 30
    assert ('Of fewer than ten groups' in str(actual)) == has_few_groups
    assert 'above 1 by two' not in str(actual)


def test_half_precision_is_attached():
    net, inputs, labels = data()
    net.bfloat16()
    found = mmcalib.calibrate(net, loader_of(inputs.bfloat16(), labels))
    assert 'torch.bfloat16 rounds' in found.attached and found.difference < 1e-4


@pytest.mark.parametrize('factor', [1e-4, 1e4])
def test_calibrate_logits_of_another_scale_fits_their_temperature(factor):
    """Of cosines the best temperature is below 0.01, though many predictions are wrong."""
    net, inputs, labels = data(n=240)
    expected = mmcalib.calibrate(net, loader_of(inputs, labels), groups=range(240))
    net.fc.weight.data *= factor
    net.fc.bias.data *= factor
    found = mmcalib.calibrate(net, loader_of(inputs, labels), groups=range(240))
    assert found.scaler.temperature_ == pytest.approx(factor * expected.scaler.temperature_, 1e-4)
    assert found.after['NLL'] == pytest.approx(expected.after['NLL'], rel=1e-4)


def test_calibrate_labels_at_random_says_no_information():
    """Within a standard error of none: a temperature is fitted, and says why it is so high."""
    net, inputs, labels = data(n=300)
    said = []
    for seed in range(6):
        order = torch.randperm(300, generator=torch.Generator().manual_seed(seed))
        try:
            said.append(str(mmcalib.calibrate(net, loader_of(inputs, labels[order]))))
        except ValueError as error:
            said.append(str(error))
    assert all('no information' in text and 'same order' in text for text in said)
    assert any('Temperature ' in text for text in said)
    for groups in (None, np.arange(300) // 100):
        found = mmcalib.calibrate(net, loader_of(inputs, labels), groups=groups)
        assert 'no information' not in str(found)


def test_calibrate_classes_without_labels_are_named():
    net, inputs, labels = data((6, 7))
    labels[labels == 2] = 255
    found = mmcalib.calibrate(net, loader_of(inputs, labels), ignore_index=255)
    assert found.unlabelled == [2] and re.search(r'No label is of class 2\b', str(found))
    net, inputs, labels = data((6, 7))
    found = mmcalib.calibrate(net, loader_of(inputs, labels))
    assert found.unlabelled == [] and 'No label' not in str(found)


REFUSED = {
    'labels of other classes': (
        dict(labels=lambda y: data()[0](data()[1]).argmin(1)), 'classes .* in the same order',
    ),
    'masks of 0 and 255': (
        dict(labels=lambda y: (y > 0).long()[:, None, None] * 255 + torch.zeros(1, 6, 7).long(),
             shape=(6, 7), ignore_index=255),
        'write 1 in its place',
    ),
    'one class': (dict(labels=lambda y: y * 0 + 2), 'all labels are 2'),
    'probabilities': (dict(logits=lambda o: o.softmax(1)), 'returns probabilities'),
    'no prediction is wrong': (
        dict(labels=lambda y: data()[0](data()[1]).argmax(1)), 'no prediction is wrong',
    ),
    'NaN': (dict(inputs=lambda x: x * float('nan')), 'NaN'),
    'an unknown method': (dict(method='temprature'), 'did you mean temperature'),
    'a method for two classes': (dict(method='platt'), 'takes logits of two classes'),
    'few groups': (dict(groups=range(3)), 'group of each of 60 images, got 3'),
    'no group': (dict(groups=[]), 'groups is empty'),
    'one group': (dict(groups=[0] * 60), 'are of one group'),
    'one-hot labels': (dict(labels=lambda y: nn.functional.one_hot(y, 4)), r'labels\.argmax\(1\)'),
}  # fmt: skip


@pytest.mark.parametrize('name', REFUSED)
def test_what_is_refused(name):
    options, message = copy.copy(REFUSED[name][0]), REFUSED[name][1]
    shape = options.pop('shape', ())
    net, inputs, labels = data(shape, sigmoids=options.pop('sigmoids', False))
    labels = labels[:, 0, 0] if shape else labels
    inputs, labels = (
        options.pop(n, lambda v: v)(v) for n, v in (('inputs', inputs), ('labels', labels))
    )
    loader = loader_of(inputs, labels)
    with pytest.raises(ValueError, match=message) as error:
        mmcalib.calibrate(net, loader, **options)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('method', ['temperature', 'ets'])
def test_a_calibrated_model_is_refused(method):
    net, inputs, labels = data()
    found = mmcalib.calibrate(net, loader_of(inputs, labels), method=method)
    with pytest.raises(ValueError, match='calibrated already'):
        mmcalib.calibrate(found.model, loader_of(inputs, labels))
    with pytest.raises(TypeError, match='must be a torch'):
        mmcalib.calibrate(net.forward, loader_of(inputs, labels))


class Routed(nn.Module):
    """Two layers that predict, of which the sign of the last input chooses one for each image."""

    def __init__(self, net):
        super().__init__()
        self.net = net
        self.red, self.blue = copy.deepcopy(net.fc), copy.deepcopy(net.fc)
        self.blue.weight.data *= 2

    def forward(self, x):
        features = self.net.norm(self.net.body(x[:, :5])).relu()
        if (x[:, 5] > 0).all():
            return self.red(features)
        if (x[:, 5] < 0).all():
            return self.blue(features)
        return torch.where(x[:, 5:] > 0, self.red(features), self.blue(features))


class Capped(nn.Module):
    """Logits with a largest and a smallest value."""

    def __init__(self, net, limit):
        super().__init__()
        self.net, self.limit = net, limit

    def forward(self, x):
        return self.net(x).clamp(-self.limit, self.limit)


def assert_equals_the_scaled_model(found, net, inputs):
    with torch.no_grad():
        expected = found.scaler.predict_proba(net.eval()(inputs))
        actual = found.model(inputs).softmax(1)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


DOMAINS = {
    'halves': [1] * 80 + [-1] * 80,
    'one in the middle': [1] * 64 + [-1] * 32 + [1] * 64,
    'the last batch': [1] * 144 + [-1] * 16,
    'one of ten': [1] * 112 + [-1] * 16 + [1] * 32,
    'mixed in one batch': [1] * 72 + [-1] * 16 + [1] * 72,
}


@pytest.mark.parametrize('order', DOMAINS)
def test_calibrate_two_heads_chosen_by_the_input_model_equals_the_scaled_one(order):
    net, inputs, labels = data(n=160)
    domains = torch.tensor(DOMAINS[order], dtype=torch.float32)[:, None]
    inputs = torch.cat([inputs, domains], dim=1)
    net = Routed(net)
    found = mmcalib.calibrate(net, loader_of(inputs, labels))
    assert_equals_the_scaled_model(found, net, inputs)
    evaluated = mmcalib.evaluate(found.model, loader_of(inputs, labels), ['NLL'])
    assert evaluated['NLL'] == pytest.approx(found.after['NLL'], abs=found.errors['after']['NLL'])


@pytest.mark.parametrize('shape', [(), (6, 7)])
@pytest.mark.parametrize('side', [1, -1])
def test_calibrate_logits_capped_after_the_first_batch_model_equals_the_scaled_one(shape, side):
    net, inputs, labels = data(shape, n=160)
    with torch.no_grad():
        logits = net.eval()(inputs)
        highest = (side * logits).flatten(1).amax(1)
        order = highest.argsort()  # the largest logits in the last batch but one
        order = torch.cat([order[:128], order[144:], order[128:144]])
    inputs, labels = inputs[order], labels[order]
    net = Capped(net, float(highest.sort().values[143:146].mean()))
    found = mmcalib.calibrate(net, loader_of(inputs, labels), method='vector')
    assert found.attached
    assert_equals_the_scaled_model(found, net, inputs)


@pytest.mark.parametrize('place', [0, 3, -1])
@pytest.mark.parametrize('method', ['temperature', 'ets'])
def test_calibrate_an_empty_batch_counts_as_none(method, place):
    net, inputs, labels = data()
    batches = list(loader_of(inputs, labels))
    expected = mmcalib.calibrate(net, batches, method=method)
    batches.insert(place if place >= 0 else len(batches), (inputs[:0], labels[:0]))
    found = mmcalib.calibrate(net, batches, method=method)
    assert found.after == expected.after and found.folded_into == expected.folded_into


class Counting(nn.Module):
    """A model whose predictions depend on how many batches it has seen."""

    def __init__(self, net):
        super().__init__()
        self.net, self.count = net, 0

    def forward(self, x):
        self.count += 1
        return self.net(x) * (1 + self.count)


def test_calibrate_a_model_that_predicts_otherwise_when_run_again_raises():
    net, inputs, labels = data()
    with pytest.raises(ValueError, match='again'):
        mmcalib.calibrate(Counting(net), loader_of(inputs, labels))


class InPlace(nn.Module):
    """A model that normalises its inputs in place."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x.sub_(0.1).div_(2))


@pytest.mark.parametrize('method', ['temperature', 'ets'])
def test_calibrate_a_model_that_changes_its_inputs_reads_them_as_they_were(method):
    net, inputs, labels = data()
    batches, before = list(loader_of(inputs, labels)), inputs.clone()
    found = mmcalib.calibrate(InPlace(net), batches, method=method)
    assert torch.equal(torch.cat([x for x, _ in batches]), before)
    with torch.no_grad():
        expected = found.scaler.predict_proba(net.eval()((inputs - 0.1) / 2))
        actual = found.model(inputs.clone()).softmax(1)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


def test_calibrate_a_loader_that_fills_one_buffer_reads_each_batch():
    net, inputs, labels = data(n=160)

    class Loader:
        def __iter__(self):
            buffer, classes = torch.empty(16, 5), torch.empty(16, dtype=torch.int64)
            for x, y in zip(inputs.split(16), labels.split(16), strict=True):
                yield buffer.copy_(x), classes.copy_(y)

    found = mmcalib.calibrate(net, Loader())
    expected = mmcalib.calibrate(net, loader_of(inputs, labels))
    assert found.after == expected.after and found.folded_into == ['fc']


GRAD_MODES = {'no_grad': torch.no_grad, 'inference_mode': torch.inference_mode}


@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize('mode', GRAD_MODES)
@pytest.mark.parametrize('method', ['temperature', 'vector', 'ets', 'class-temperatures', 'auto'])
def test_calibrate_without_gradients_equals_that_with_them(method, mode):
    net, inputs, labels = data(n=240)
    expected = mmcalib.calibrate(net, loader_of(inputs, labels), method=method)
    with GRAD_MODES[mode]():
        found = mmcalib.calibrate(net, loader_of(inputs, labels), method=method)
    assert found.after == pytest.approx(expected.after)
    found.model(inputs).sum().backward()  # so it can still be trained
    assert next(found.model.parameters()).grad is not None


def test_scaler_fitted_to_inference_tensors_learns_the_same():
    net, inputs, labels = data(n=240)
    with torch.inference_mode():
        logits = net(inputs)
        inside = SCALERS['vector']().fit(logits, labels.clone())
    after = SCALERS['vector']().fit(logits, labels)
    expected = SCALERS['vector']().fit(net(inputs).detach(), labels)
    for scaler in (inside, after):
        torch.testing.assert_close(scaler.tensors, expected.tensors)


def old_weight_norm(net, inputs):
    nn.utils.weight_norm(net.fc)


def pruned(net, inputs):
    prune.random_unstructured(net.fc, 'weight', amount=0.2)


def with_features(net, inputs):
    net.features, net.more = net.body(inputs), {'all': [net.fc(net.body(inputs))]}


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('change', [old_weight_norm, pruned, with_features])
@pytest.mark.parametrize('method', ['temperature', 'vector'])
def test_calibrate_tensors_that_deepcopy_refuses_model_equals_the_scaled_one(method, change):
    net, inputs, labels = data()
    change(net, inputs)
    found = mmcalib.calibrate(net, loader_of(inputs, labels), method=method)
    assert_equals_the_scaled_model(found, net, inputs)
    assert found.folded_into == (['fc'] if change == with_features else [])
    assert change == with_features or 'weight_norm' in found.attached


def loader_that_is_not_read():
    pytest.fail('the loader was read')
    yield


def test_calibrate_what_cannot_be_copied_is_said_before_the_pass():
    net, inputs, labels = data()
    net.body.lock = threading.Lock()
    with pytest.raises(ValueError, match=r'body\.lock.*copy=False'):
        mmcalib.calibrate(net, loader_that_is_not_read())
    found = mmcalib.calibrate(net, loader_of(inputs, labels), copy=False)
    assert found.model is net and found.folded_into == ['fc']


def with_hook_on_model(net):
    net.fc.register_forward_hook(lambda module, given, output: output / net.fc.weight.norm())


def with_forward_of_layer(net):
    net.forward = lambda x: net.fc(net.norm(net.body(x)).relu())


def with_wrapped_forward(net):
    forward = net.forward

    @functools.wraps(forward)
    def wrapped(*args, **kwargs):
        return forward(*args, **kwargs)

    net.forward = wrapped


def with_helper(net):
    def last(x):
        return net.fc(x)

    net.fc.register_forward_pre_hook(lambda module, given: last and None)


def with_default(net):
    net.register_forward_pre_hook(lambda module, given, layers=(net.body, 3): None)


def with_buffer(net):
    mean = net.norm.running_mean
    net.register_forward_pre_hook(lambda module, given: mean is None or None)


ENTANGLED = (with_hook_on_model, with_forward_of_layer, with_wrapped_forward, with_helper)
ENTANGLED += (with_default, with_buffer)


@pytest.mark.parametrize('change', ENTANGLED)
def test_calibrate_code_that_refers_to_the_given_model_is_refused_before_the_pass(change):
    net, inputs, labels = data()
    change(net)
    with pytest.raises(ValueError, match=r'given model.*copy=False'):
        mmcalib.calibrate(net, loader_that_is_not_read())
    before = copy.deepcopy(dict(net.named_parameters()))
    with torch.no_grad():
        logits = net.eval()(inputs)
    found = mmcalib.calibrate(net, loader_of(inputs, labels), copy=False)
    with torch.no_grad():
        actual = found.model(inputs).softmax(1)
    expected = found.scaler.predict_proba(logits)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
    kept = [key for key, value in net.named_parameters() if torch.equal(value, before[key])]
    folded = found.folded_into == ['fc']
    assert len(kept) == len(before) - (2 if folded else 0)


GLOBAL_NET = data()[0]


def test_calibrate_a_hook_that_refers_to_a_global_model_is_refused():
    GLOBAL_NET.register_forward_hook(lambda *_: setattr(GLOBAL_NET, 'seen', True))
    with pytest.raises(ValueError, match=r'given model.*copy=False'):
        mmcalib.calibrate(GLOBAL_NET, loader_that_is_not_read())


NAMED_NET = data()[0]


def test_calibrate_an_attribute_named_as_the_global_model_is_not_that_one():
    NAMED_NET.NAMED_NET = nn.Identity()
    NAMED_NET.register_forward_hook(lambda module, given, output: module.NAMED_NET(output))
    _, inputs, labels = data()
    found = mmcalib.calibrate(NAMED_NET, loader_of(inputs, labels))
    assert_equals_the_scaled_model(found, NAMED_NET, inputs)


@pytest.mark.parametrize('method', ['temperature', 'ets'])
def test_calibrate_hooks_that_do_not_refer_to_the_model_are_copied(method):
    net, inputs, labels = data()
    seen = []
    other = nn.Linear(4, 4)
    net.fc.register_forward_hook(lambda module, given, output: seen.append(type(module)))
    net.fc.register_forward_hook(lambda module, given, output: other(output) * 0 + output)
    net.forward = functools.partial(type(net).forward, net)
    found = mmcalib.calibrate(net, loader_of(inputs, labels), method=method)
    assert_equals_the_scaled_model(found, net, inputs)


def test_calibrate_in_place_an_error_leaves_the_model_as_it_was():
    net, inputs, labels = data()
    net.train()
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ValueError, match='all labels are 2'):
        mmcalib.calibrate(net, loader_of(inputs, labels * 0 + 2), copy=False)
    assert net.training
    torch.testing.assert_close(dict(net.state_dict()), dict(before))
    found = mmcalib.calibrate(net, loader_of(inputs, labels), method='ets', copy=False)
    assert found.model.model is net and not net.training
    with pytest.raises(ValueError, match='calibrated already'):
        mmcalib.calibrate(net, loader_of(inputs, labels), copy=False)


def test_calibrate_an_error_that_is_caught_gives_the_random_states_back_at_once():
    net, inputs, labels = data()
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    expected = [torch.rand(1).item(), np.random.rand(), random.random()]
    broken = TensorDataset(inputs, labels * 0 + 9)
    broken_loader = DataLoader(broken, batch_size=16, shuffle=True)
    loader = loader_of(inputs, labels, shuffle=True)
    one_class = loader_of(inputs, labels * 0, shuffle=True)
    calls = (
        lambda: mmcalib.calibrate(net, loader, method='platt'),
        lambda: mmcalib.calibrate(net, broken_loader),
        lambda: mmcalib.calibrate(net, one_class),
        lambda: mmcalib.evaluate(net, loader, ['ECE'], protocol='image'),
        lambda: mmcalib.evaluate(net, broken_loader, ['ECE']),
    )
    errors = []
    for call in calls:
        for seed_before in (True, False):
            modes = net.train().training
            if seed_before:
                torch.manual_seed(5)
                np.random.seed(5)
                random.seed(5)
            with pytest.raises(ValueError) as error:
                call()
            errors.append(error)  # whose traceback is alive
            assert net.training == modes
            if not seed_before:
                torch.manual_seed(5)
                np.random.seed(5)
                random.seed(5)
                del error
                errors.clear()  # which may not undo it
            assert [torch.rand(1).item(), np.random.rand(), random.random()] == expected


def test_calibrate_a_folded_matrix_is_saved_by_safetensors(tmp_path):
    safetensors = pytest.importorskip('safetensors.torch')
    for shape in SHAPES.values():
        net, inputs, labels = data(shape, n=120)
        found = mmcalib.calibrate(net, loader_of(inputs, labels), method='matrix')
        assert found.folded_into == ['fc']
        assert all(value.is_contiguous() for value in found.model.state_dict().values())
        safetensors.save_file(found.model.state_dict(), tmp_path / 'model.safetensors')


class Upsampled(nn.Module):
    """A network whose last layer is a transposed convolution, as of MONAI's UNet."""

    def __init__(self, shape, *, groups=1, bias=True):
        super().__init__()
        self.net = Net(shape, 8)
        kind = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}[len(shape)]
        self.last = kind(8, 4, 3, stride=2, output_padding=1, padding=1, groups=groups, bias=bias)

    def forward(self, x):
        return self.last(self.net(x))


@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize('method', ['temperature', 'vector', 'matrix'])
@pytest.mark.parametrize('shape', [(6,), (6, 7), (3, 4, 5)])
@pytest.mark.parametrize('options', [{}, {'groups': 4}, {'bias': False}])
def test_calibrate_a_transposed_convolution_takes_the_scaling(options, shape, method):
    _, inputs, _ = data(shape, n=40)
    net = Upsampled(shape, **options).eval()
    with torch.no_grad():
        probs = (net(inputs) / 3).softmax(1).movedim(1, -1)
    labels = torch.distributions.Categorical(probs=probs).sample()
    found = mmcalib.calibrate(net, loader_of(inputs, labels), method=method)
    assert_equals_the_scaled_model(found, net, inputs)
    assert found.folded_into == (['last'] if method == 'temperature' or not options else [])


def sparse_labels(counts):
    """Six labels that are there in some of 150 images, and as many that are frequent."""
    net, inputs, labels = data(n=150, num_logits=12, sigmoids=True)
    for number, count in enumerate(counts):
        labels[:, number] = 0
        labels[torch.arange(count) * 7, number] = 1
    return net, inputs, labels


@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize('method', ['temperature', 'vector', 'platt', 'isotonic'])
def test_calibrate_a_rare_label_takes_what_all_share(method):
    net, inputs, labels = sparse_labels([0, 1, 150 // 7])
    labels[:, 3] = 1
    found = mmcalib.calibrate(net, loader_of(inputs, labels), method=method)
    with torch.no_grad():
        logits, actual = net(inputs), found.model(inputs).sigmoid()
    images = torch.arange(150).repeat_interleave(12)
    shared = SCALERS[method]().fit(logits.reshape(-1, 1), labels.flatten(), images)
    for number in range(12):
        scaler = shared
        if number not in (0, 1, 3):
            scaler = SCALERS[method]().fit(logits[:, number, None], labels[:, number])
        expected = scaler.predict_proba(logits[:, number, None])[:, 1]
        torch.testing.assert_close(actual[:, number], expected, rtol=1e-3, atol=1e-4)
    assert re.search(r'[Ll]abels 0, 1, 3\b.* all labels', str(found))
    assert found.after['NLL'] < found.before['NLL']


def test_calibrate_labels_that_are_all_constant_raises():
    net, inputs, labels = data(n=60, num_logits=3, sigmoids=True)
    with pytest.raises(ValueError, match='all labels are 0'):
        mmcalib.calibrate(net, loader_of(inputs, labels * 0))


class Masked(Net):
    """A network with a second input, which need not be given."""

    def forward(self, x, mask=None):
        logits = super().forward(x)
        return logits if mask is None else logits * mask


METHODS = ['temperature', 'vector', 'matrix', 'ets', 'isotonic', 'class-temperatures']
METHODS += ['class-conditional', 'several labels']
ATTACHED = []
for attached_shape in ((), (6, 7)):
    ATTACHED += [('by place', method, attached_shape) for method in METHODS]
    ATTACHED += [('by name', 'ets', attached_shape), ('keyword', 'ets', attached_shape)]
ATTACHED.remove(('by place', 'several labels', (6, 7)))  # Labels are of images.


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize(('way', 'method', 'shape'), ATTACHED)
def test_an_attached_calibration_exports_with_the_dynamic_shapes_of_its_model(way, method, shape):
    several = method == 'several labels'
    net, inputs, labels = data(shape, n=240, sigmoids=several)
    scaler = 'isotonic' if several else method
    found = mmcalib.calibrate(net, loader_of(inputs, labels), method=scaler)
    scaling = scaling_module(found.scaler)
    model = CalibratedOutput(Masked(shape).eval(), scaling).eval()
    dim = torch.export.Dim('n', min=1, max=1000)
    dynamic = ({0: dim},) if way == 'by place' else {'x': {0: dim}}
    given = ((), {'x': inputs[:7]}) if way == 'keyword' else ((inputs[:7],), None)
    exported = torch.export.export(model, *given, dynamic_shapes=dynamic)
    for size in (1, 5, 12):
        expected = model(inputs[:size])
        if way == 'keyword':
            actual = exported.module()(x=inputs[:size])
        else:
            actual = exported.module()(inputs[:size])
        torch.testing.assert_close(actual, expected)


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('method', ['temperature', 'ets', 'isotonic', 'class-temperatures'])
def test_an_attached_calibration_of_any_batch_size_runs_in_onnx(method, tmp_path):
    onnxruntime = pytest.importorskip('onnxruntime')
    pytest.importorskip('onnxscript')
    net, inputs, labels = data((6, 7))
    net.cosine = True
    model = mmcalib.calibrate(net, loader_of(inputs, labels), method=method).model
    dynamic = ({0: torch.export.Dim('n', min=1, max=1000)},)
    file = tmp_path / 'model.onnx'
    torch.onnx.export(model, (inputs[:7],), file, dynamo=True, dynamic_shapes=dynamic)
    session = onnxruntime.InferenceSession(file)
    for size in (1, 12):
        given = {session.get_inputs()[0].name: inputs[:size].numpy()}
        actual = torch.from_numpy(session.run(None, given)[0])
        expected = model(inputs[:size]).detach()
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


def test_an_attached_calibration_is_copied_pickled_and_replicated():
    net, inputs, labels = data()
    model = mmcalib.calibrate(net, loader_of(inputs, labels), method='ets').model
    expected = model(inputs)
    others = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    others.append(model._replicate_for_data_parallel())  # by which nn.DataParallel copies
    others[-1].model = copy.deepcopy(model.model)
    for other in others:
        torch.testing.assert_close(other(inputs), expected)
        other.model.fc.weight.data.zero_()
        other.model.fc.bias.data.zero_()
        assert not torch.allclose(other(inputs), expected)
        assert list(inspect.signature(other.forward).parameters) == ['x']
    torch.testing.assert_close(model(inputs), expected)


@pytest.mark.parametrize('order', [[1, 0, 2, 3, 4], [0, 2, 3, 1, 4]])
def test_calibrate_some_classes_in_another_order_raises(order):
    torch.manual_seed(0)
    logits = 4 * torch.randn(400, 5)
    labels = (logits + 3 * torch.randn(400, 5)).argmax(dim=1)
    model = torch.nn.Linear(5, 5, bias=False)
    model.weight.data = torch.eye(5)
    mmcalib.calibrate(model, [(logits, labels)])
    with pytest.raises(ValueError, match=r'predicted as another.*in the same order'):
        mmcalib.calibrate(model, [(logits, torch.tensor(order)[labels])])
