"""Other frequencies of classes: shifted scalings, and frequencies estimated without labels."""

import warnings

import numpy as np
import pytest
import torch

from mmcalib.posthoc import SCALERS, estimate_class_prior, shift_class_prior


def drawn_classes(num_classes, num_images, prior, seed):
    """Return the calibrated log-probabilities of draws of Gaussian classes, and their labels.

    They are calibrated for classes of equal frequency.
    """
    generator = np.random.default_rng(seed)
    labels = generator.choice(num_classes, num_images, p=prior)
    values = generator.normal(size=(num_images, num_classes)) + 1.2 * np.eye(num_classes)[labels]
    return torch.tensor(1.2 * values), torch.tensor(labels)


HEADS = [(method, 3) for method in ('temperature', 'vector', 'matrix')]
for two_class_method in ('temperature', 'vector', 'matrix', 'platt', 'beta'):
    HEADS += [(two_class_method, 1), (two_class_method, 2)]


@pytest.mark.parametrize(('method', 'num_logits'), HEADS)
def test_shift_class_prior_any_head_equals_bayes_rule(method, num_logits):
    num_classes = max(num_logits, 2)
    logits, labels = drawn_classes(num_classes, 400, [1 / num_classes] * num_classes, seed=0)
    if num_logits == 1:
        logits = logits[:, 1:] - logits[:, :1]
    scaler = SCALERS[method]().fit(logits, labels)
    new = np.arange(1, num_classes + 1) / np.arange(1, num_classes + 1).sum()
    old = new[::-1].copy()
    expected = scaler.predict_proba(logits).numpy() * (new / old)
    expected /= expected.sum(axis=1, keepdims=True)
    shifted = shift_class_prior(scaler, new, old)
    np.testing.assert_allclose(shifted.predict_proba(logits).numpy(), expected, atol=1e-12)
    # The given scaling stays.
    assert scaler.parameters == SCALERS[method]().fit(logits, labels).parameters


def test_shift_class_prior_of_a_layer_folds():
    torch.manual_seed(0)
    inputs = torch.randn(50, 4, dtype=torch.float64)
    layer = torch.nn.Linear(4, 3, dtype=torch.float64)
    logits = layer(inputs).detach()
    scaler = SCALERS['temperature']().fit(logits, torch.randint(3, (50,)))
    shifted = shift_class_prior(scaler, [0.7, 0.2, 0.1], [0.2, 0.3, 0.5])
    weight, bias = shifted.fold(layer.weight.detach(), layer.bias.detach())
    actual = (inputs @ weight.T + bias).softmax(dim=1)
    torch.testing.assert_close(actual, shifted.predict_proba(logits))


@pytest.mark.parametrize('prior', [[0.5, 0.5], [0.97, 0.03], [0.6, 0.3, 0.1]])
def test_estimate_class_prior_of_known_frequencies_finds_them(prior):
    num_classes = len(prior)
    logits, labels = drawn_classes(num_classes, 40_000, prior, seed=0)
    probs = logits.softmax(dim=1)
    estimate = estimate_class_prior(probs, [1 / num_classes] * num_classes)
    actual_frequencies = torch.bincount(labels) / len(labels)
    np.testing.assert_allclose(estimate, actual_frequencies, atol=0.01)


def test_estimate_class_prior_of_few_rare_positives_warns_with_its_standard_error():
    logits, _ = drawn_classes(2, 400, [0.995, 0.005], seed=0)
    with pytest.warns(UserWarning, match=r'of class 1, .* is not told from 0 by 400 predictions'):
        estimate_class_prior(logits.softmax(dim=1), [0.5, 0.5])


def test_estimate_class_prior_standard_error_is_that_of_many_draws():
    """A warning begins where an estimate is less than two standard errors."""
    estimates = []
    warned = []
    for seed in range(60):
        logits, _ = drawn_classes(2, 300, [0.93, 0.07], seed=seed)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            estimates.append(estimate_class_prior(logits.softmax(dim=1), [0.5, 0.5])[1].item())
        warned.append(bool(caught))
    threshold = 2 * np.std(estimates)
    expected = [estimate < threshold for estimate in estimates]
    assert np.mean(np.array(warned) == expected) > 0.9
    assert 0 < sum(warned) < 60


def test_estimate_class_prior_equals_a_loop_and_takes_one_column():
    generator = np.random.default_rng(0)
    probs = generator.uniform(size=50)
    old = np.array([0.7, 0.3])
    prior = old.copy()
    for _ in range(2_000):
        total = np.zeros(2)
        for prob in probs:
            joint = np.array([1 - prob, prob]) * prior / old
            total += joint / joint.sum()
        prior = total / len(probs)
    for given in (probs, probs[:, None], np.stack([1 - probs, probs], axis=1)):
        np.testing.assert_allclose(estimate_class_prior(given, old), prior, atol=1e-7)
    maps = np.stack([1 - probs, probs], axis=1).reshape(2, 5, 5, 2).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(estimate_class_prior(maps, old), prior, atol=1e-7)


@pytest.mark.parametrize(
    ('prior', 'words'),
    [
        ([0.5, 0.6], 'frequencies above 0 that sum to 1'),
        ([1.0, 0.0], 'frequencies above 0 that sum to 1'),
        ([float('nan'), 0.5], 'frequencies above 0 that sum to 1'),
        ([0.2, 0.3, 0.5], 'a frequency of each of 2 classes, got 3'),
        (0.3, r'a frequency of each class, such as \[0.9, 0.1\], got 0.3'),
    ],
)
def test_class_prior_that_is_none_raises(prior, words):
    logits, labels = drawn_classes(2, 50, [0.5, 0.5], seed=0)
    scaler = SCALERS['temperature']().fit(logits, labels)
    with pytest.raises(ValueError, match=words):
        shift_class_prior(scaler, prior, [0.5, 0.5])
    with pytest.raises(ValueError, match=words):
        estimate_class_prior(logits.softmax(dim=1), prior)


@pytest.mark.parametrize('method', ['ets', 'isotonic', 'class-temperatures', 'class-conditional'])
def test_shift_class_prior_without_a_shift_raises(method):
    logits, labels = drawn_classes(3, 300, [0.4, 0.3, 0.3], seed=0)
    scaler = SCALERS[method]().fit(logits, labels)
    with pytest.raises(ValueError, match=f'{method} has no shift .* take temperature, vector'):
        shift_class_prior(scaler, [0.4, 0.3, 0.3], [0.3, 0.3, 0.4])
