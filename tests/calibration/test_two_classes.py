"""One sigmoid: the default scaling mends its rate of positives, and says what changes."""

import json

import pytest
import torch
from torch import nn

import mmcalib

SHIFT = 1.5


class Shifted(nn.Module):
    """Logits of one sigmoid, or of several, that predict too many positives."""

    def __init__(self, num_labels=1, *, bias=True):
        super().__init__()
        self.fc = nn.Linear(num_labels, num_labels, bias=bias)
        with torch.no_grad():
            self.fc.weight.copy_(2 * torch.eye(num_labels))
            if bias:
                self.fc.bias.fill_(SHIFT)

    def forward(self, inputs):
        return self.fc(inputs)


def make_batches(num_images=1_000, num_labels=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = 1.5 * torch.randn(num_images, num_labels, generator=generator) - 1
    labels = (torch.rand(inputs.shape, generator=generator) < inputs.sigmoid()).long()
    if num_labels == 1:
        labels = labels[:, 0]
    return list(zip(inputs.split(200), labels.split(200), strict=True))


def test_calibrate_sigmoid_default_is_platt_and_mends_the_rate():
    calibrated = mmcalib.calibrate(Shifted(), make_batches())
    assert calibrated.method == 'platt'
    assert calibrated.folded_into == ['fc']
    fresh = make_batches(seed=1)
    measured = mmcalib.evaluate(calibrated.model, fresh, ['ClasswiseECE', 'rate_gap'])
    before = mmcalib.evaluate(Shifted(), fresh, ['ClasswiseECE', 'rate_gap'])
    assert before['rate_gap'] > 10
    assert measured['rate_gap'] < 4
    assert measured['ClasswiseECE'] < 6
    assert calibrated.changed > 100
    text = str(calibrated)
    assert f'{calibrated.changed} of 1,000 predicted classes change, since P(y = 1)' in text
    assert 'threshold 0.5' in text
    assert 'ECE of P(y = 1) (%)' in text
    assert 'on average' not in text


class TwoLogits(nn.Module):
    """The same predictions as those of one sigmoid, by the logits of two classes."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(1, 2)
        one = Shifted().fc
        with torch.no_grad():
            self.fc.weight.copy_(torch.cat([-one.weight, one.weight]) / 2)
            self.fc.bias.copy_(torch.cat([-one.bias, one.bias]) / 2)

    def forward(self, inputs):
        return self.fc(inputs)


def test_calibrate_two_logits_default_equals_that_of_one_sigmoid():
    of_sigmoid = mmcalib.calibrate(Shifted(), make_batches())
    of_logits = mmcalib.calibrate(TwoLogits(), make_batches())
    assert of_logits.method == 'platt'
    assert of_logits.folded_into == ['fc']
    assert of_logits.after['NLL'] == pytest.approx(of_sigmoid.after['NLL'], abs=2e-3)
    inputs = torch.linspace(-4, 4, 20)[:, None]
    with torch.no_grad():
        expected = of_sigmoid.model(inputs).sigmoid()[:, 0]
        torch.testing.assert_close(of_logits.model(inputs).softmax(1)[:, 1], expected)


def test_calibrate_two_logits_auto_compares_the_methods_of_a_sigmoid():
    chosen = mmcalib.calibrate(TwoLogits(), make_batches(), method='auto')
    assert {'temperature', 'platt', 'beta'} < {row['method'] for row in chosen.candidates}
    assert chosen.method == 'platt'


def test_calibrate_rare_positives_do_not_doubt_the_order_of_classes():
    """Too many positives are predicted, so that the accuracy is below the share of negatives."""
    batches = [(inputs - 1.5, labels * (inputs[:, 0] > 0)) for inputs, labels in make_batches()]
    calibrated = mmcalib.calibrate(Shifted(), [(inputs + 2.5, y) for inputs, y in batches])
    assert calibrated.before['accuracy'] < calibrated.majority
    assert 'order' not in str(calibrated)
    with pytest.raises(ValueError, match='are the classes of the labels in the same order'):
        mmcalib.calibrate(Shifted(), [(inputs + 2.5, 1 - y) for inputs, y in batches])


def test_calibrate_sigmoid_temperature_says_what_it_cannot_mend():
    calibrated = mmcalib.calibrate(Shifted(), make_batches(), method='temperature')
    assert calibrated.changed == 0
    text = str(calibrated)
    assert 'a temperature cannot mend that, platt or auto can' in text
    rates = calibrated.to_dict()['fitted']['rates']
    for when in ('before', 'after'):
        assert rates[when]['probs'][1] > rates[when]['frequencies'][1] + 10
        assert f'P(y = 1) is {rates["after"]["probs"][1]:.1f} % on average' in text
    json.dumps(calibrated.to_dict(), allow_nan=False)
    shifted = mmcalib.calibrate(
        Shifted(), make_batches(), method='temperature', class_prior=[0.9, 0.1]
    )
    assert 'The shift to the classes in use presumes that both are equal' in str(shifted)


def test_calibrate_sigmoid_layer_without_bias_attaches_and_says_why():
    calibrated = mmcalib.calibrate(Shifted(bias=False), make_batches())
    assert calibrated.method == 'platt'
    assert 'no linear layer with a bias' in calibrated.attached


def test_calibrate_several_labels_default_is_platt_of_each():
    calibrated = mmcalib.calibrate(Shifted(3), make_batches(num_labels=3))
    assert calibrated.method == 'platt'
    assert len(calibrated.scaler.scalers) == 3
    by_temperature = mmcalib.calibrate(Shifted(3), make_batches(num_labels=3), method='temperature')
    assert 'is not the frequency of the labels' in str(by_temperature)
    assert 'is not the frequency of the labels' not in str(calibrated)


@pytest.mark.parametrize('method', [None, 'temperature', 'beta'])
def test_calibrate_class_prior_predicts_the_rate_in_use(method):
    prior = [0.95, 0.05]
    batches = make_batches()
    calibrated = mmcalib.calibrate(Shifted(), batches, method=method, class_prior=prior)
    assert calibrated.to_dict()['class_prior'] == prior
    assert 'shifted to classes of which 95, 5 % are in use' in str(calibrated)
    plain = mmcalib.calibrate(Shifted(), batches, method=method)
    assert calibrated.after == pytest.approx(plain.after)
    labels = torch.cat([batch_labels for _, batch_labels in batches])
    frequency = labels.double().mean().item()
    inputs = torch.cat([batch_inputs for batch_inputs, _ in batches])
    with torch.no_grad():
        expected = plain.model(inputs).double().sigmoid()
        actual = calibrated.model(inputs).double().sigmoid()
    odds = expected / (1 - expected) * (0.05 / frequency) / (0.95 / (1 - frequency))
    torch.testing.assert_close(actual, odds / (1 + odds), atol=1e-5, rtol=1e-4)


def test_calibrate_class_prior_of_classes_folds_a_temperature_as_a_vector():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    inputs = 2 * torch.randn(300, 4)
    labels = torch.multinomial(model(inputs).detach().softmax(1), 1)[:, 0]
    calibrated = mmcalib.calibrate(model, [(inputs, labels)], class_prior=[0.6, 0.3, 0.1])
    assert calibrated.method == 'vector'
    assert calibrated.attached is None


@pytest.mark.parametrize(
    ('prior', 'num_labels', 'words'),
    [
        ([0.5, 0.6], 1, 'sum to 1'),
        ([1.0, 0.0], 1, 'above 0'),
        ([0.2, 0.3, 0.5], 1, 'each of 2 classes, got 3'),
        ([0.5, 0.5], 3, 'calibrate each label by itself'),
    ],
)
def test_calibrate_class_prior_that_is_none_raises(prior, num_labels, words):
    batches = make_batches(num_labels=num_labels)
    with pytest.raises(ValueError, match=words):
        mmcalib.calibrate(Shifted(num_labels), batches, class_prior=prior)


def test_calibrate_class_prior_refuses_a_method_without_shift_after_one_batch():
    batches = make_batches()

    def loader():
        yield batches[0]
        raise AssertionError('a second batch was read')

    with pytest.raises(ValueError, match='isotonic has no shift'):
        mmcalib.calibrate(Shifted(), loader(), method='isotonic', class_prior=[0.9, 0.1])


def test_calibrate_class_prior_auto_compares_methods_with_a_shift():
    calibrated = mmcalib.calibrate(Shifted(), make_batches(), method='auto', class_prior=[0.9, 0.1])
    compared = {candidate['method'] for candidate in calibrated.candidates}
    assert compared == {'none', 'temperature', 'platt', 'vector', 'beta', 'matrix'}
    (chosen,) = [line for line in str(calibrated).splitlines() if line.startswith('→')]
    assert calibrated.unshifted.method in chosen
