"""Paired differences of two models: a loop, a paired t-test, and how often they hold the truth."""

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats

from mmcalib import compare, measure
from mmcalib.metrics.intervals import bootstrap_weights, widening_factors

MEANS = ['accuracy', 'NLL', 'Brier', 'gap', 'confidence']


def two_models(count):
    """Return the probabilities of two models, of which B is less confident, and the labels."""
    torch.manual_seed(0)
    logits = 2 * torch.randn(count, 4)
    other = logits + torch.randn(count, 4)
    labels = torch.multinomial((logits / 2).softmax(1), 1)[:, 0]
    return logits.double().softmax(1), (other / 2).double().softmax(1), labels


def terms(probs, labels):
    """Return what each prediction adds to the mean of each metric."""
    conf, predicted = probs.max(dim=1)
    correct = (predicted == labels).double()
    one_hot = torch.nn.functional.one_hot(labels, probs.shape[1])
    return {
        'accuracy': 100 * correct,
        'NLL': -probs.gather(1, labels[:, None])[:, 0].log(),
        'Brier': (probs - one_hot).square().sum(dim=1),
        'gap': 100 * (conf - correct),
        'confidence': 100 * conf,
    }


def test_compare_means_equal_loop_over_resamples():
    a, b, labels = two_models(12)
    comparison = compare(a, b, labels, MEANS, interval=0.9)
    factors = widening_factors(12, 1000, 0).tolist()
    for name in MEANS:
        values_a = terms(a, labels)[name].tolist()
        values_b = terms(b, labels)[name].tolist()
        difference = sum(values_b) / 12 - sum(values_a) / 12
        resampled = []
        for weights in bootstrap_weights(12, num_bootstrap=1000, seed=0):
            for row in weights.tolist():
                mean_a = sum(w * value for w, value in zip(row, values_a, strict=True)) / 12
                mean_b = sum(w * value for w, value in zip(row, values_b, strict=True)) / 12
                factor = factors[len(resampled)]
                resampled.append(difference + factor * (mean_b - mean_a - difference))
        low, high = np.quantile(resampled, [0.05, 0.95])
        assert comparison[name] == pytest.approx(difference)
        assert (comparison[f'{name}_low'], comparison[f'{name}_high']) == pytest.approx((low, high))


def test_compare_groups_of_other_sizes_equal_delta_interval():
    a, b, labels = two_models(900)
    groups = np.arange(900) ** 2 // 9000
    comparison = compare(a, b, labels, ['NLL'], groups=groups)
    differences = (terms(b, labels)['NLL'] - terms(a, labels)['NLL']).numpy()
    mean = differences.mean()
    residuals = np.bincount(groups, differences - mean)
    num_groups = len(residuals)
    error = math.sqrt(num_groups / (num_groups - 1) * np.square(residuals).sum()) / 900
    half = stats.t.ppf(0.975, num_groups - 1) * error
    width = comparison['NLL_high'] - comparison['NLL_low']
    assert width == pytest.approx(2 * half, rel=0.15)
    assert comparison.units == f'{num_groups} groups'


def test_compare_values_are_those_of_measure():
    a, b, labels = two_models(300)
    comparison = compare(a, b, labels)
    assert comparison.a == dict(measure(a, labels)) and comparison.b == dict(measure(b, labels))
    assert comparison.names == ['ECE', 'AECE', 'NLL', 'Brier', 'accuracy']
    assert comparison['AECE'] == comparison.b['AECE'] - comparison.a['AECE']
    assert 'AECE_low' not in comparison and 'Not judged, without an interval: AECE.' in str(
        comparison
    )
    assert json.loads(json.dumps(comparison.to_dict()))['difference']['ECE'] == comparison['ECE']


def test_compare_sides_swapped_changes_signs():
    a, b, labels = two_models(300)
    forward = compare(a, b, labels, ['ECE', 'NLL'])
    backward = compare(b, a, labels, ['ECE', 'NLL'])
    for name in ('ECE', 'NLL'):
        assert backward[name] == -forward[name]
        expected = (-forward[f'{name}_high'], -forward[f'{name}_low'])
        assert (backward[f'{name}_low'], backward[f'{name}_high']) == pytest.approx(expected)


def test_compare_model_with_itself_is_not_told_apart():
    a, _, labels = two_models(100)
    comparison = compare(a, a, labels)
    assert comparison.told_apart == []
    assert all(value == 0 for value in comparison.values())


def test_compare_overconfident_model_is_told_apart():
    a, b, labels = two_models(2000)
    comparison = compare(a, b, labels)
    assert 'ECE' in comparison.told_apart and 'NLL' in comparison.told_apart
    assert f'B has a {"lower" if comparison["NLL"] < 0 else "higher"} NLL: ' in str(comparison)


@pytest.mark.parametrize(
    ('conf_a', 'conf_b', 'text'),
    [
        (0.9, 0.8, 'The gap of B is nearer to 0, B − A: −10.00'),
        (0.65, 0.55, 'The gap of A is nearer to 0, B − A: −10.00'),
        (0.55, 0.65, 'The gap of B is nearer to 0, B − A: +10.00'),
        (0.6, 0.8, 'A is under-confident and B over-confident, by their gaps: +20.00'),
    ],
)
def test_compare_gap_says_which_is_nearer_to_0(conf_a, conf_b, text):
    labels = (torch.arange(1000) % 10 < 3).long()  # 70 % are of class 0
    models = []
    for conf in (conf_a, conf_b):
        noise = torch.linspace(-0.02, 0.02, 1000)
        models.append(torch.stack([conf + noise, 1 - conf - noise], dim=1))
    assert text in str(compare(*models, labels, ['gap']))


def test_compare_maps_have_images_as_units():
    a, b, labels = two_models(600)
    maps_a = a.view(6, 10, 10, 4).movedim(-1, 1)
    maps_b = b.view(6, 10, 10, 4).movedim(-1, 1)
    by_map = compare(maps_a, maps_b, labels.view(6, 10, 10), ['NLL', 'ECE'])
    by_group = compare(a, b, labels, ['NLL', 'ECE'], groups=np.arange(600) // 100)
    assert dict(by_map) == pytest.approx(dict(by_group))
    assert (by_map.units, by_group.units) == ('6 images', '6 groups')


def test_compare_one_group_has_no_intervals():
    a, b, labels = two_models(30)
    comparison = compare(a, b, labels, ['NLL', 'ECE'], groups=['one'] * 30)
    assert comparison.told_apart == []
    assert (
        math.isnan(comparison['NLL_low']) and comparison.to_dict()['difference']['ECE_low'] is None
    )
    assert 'Not judged, without an interval: NLL, ECE.' in str(comparison)


A, B, LABELS = two_models(5)
SEVERAL = torch.full((5, 4), 0.9)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        (dict(b=B[:4]), 'b: '),
        (
            dict(b=B[:, :3] / B[:, :3].sum(1, keepdim=True), labels=LABELS.clamp(max=2)),
            'the shapes',
        ),
        (dict(b=B.where(B < 0.5, torch.nan)), 'b: .*outside'),
        (dict(a=A.log()), 'a: .*logits'),
        (dict(interval=95), 'interval must be'),
        (dict(interval=None), 'interval must be'),
        (dict(groups=[1, 2]), 'got 2'),
        (dict(metrics='AECE'), 'no interval'),
        (dict(metrics='EEC'), 'did you mean ECE'),
        (dict(labels=LABELS * 0 + 9, ignore_index=9), 'no prediction is valid'),
        (dict(a=SEVERAL, b=SEVERAL, labels=torch.ones(5, 4).long()), 'label by label'),
        (dict(a=np.ma.array(A.numpy(), mask=A.numpy() > 0.9)), 'masked in one'),
    ],
)
def test_compare_invalid_input_raises(changes, message):
    with pytest.raises((TypeError, ValueError), match=message) as error:
        compare(**(dict(a=A, b=B, labels=LABELS) | changes))
    assert '\n' not in str(error.value)


def test_compare_two_classes_sentences_name_metrics_as_the_table():
    torch.manual_seed(0)
    p = torch.rand(2000).double()
    labels = (torch.rand(2000) < p).long()
    a = torch.stack([1 - p**3, p**3], dim=1)
    b = torch.stack([1 - p, p], dim=1)
    text = str(compare(a, b, labels, ['ClasswiseECE', 'AECE', 'NLL']))
    assert 'B has a lower ECE of P(y = 1): ' in text
    assert 'ClasswiseECE' not in text
    assert 'ClasswiseECE' not in str(compare(b, b, labels, ['ClasswiseECE']))
