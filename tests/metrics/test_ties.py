"""Predictions with equal probabilities are tied, and in one bin, by every door."""

import math
from fractions import Fraction

import numpy as np
import pytest
import references
import torch
from doors import by_door, registered_values
from samples import as_segmented

import mmcalib
from mmcalib.openmmlab.metrics import OODMetric

RANKING = ['AUROC', 'AURC']
SIZE = 400


def permuted_predictions(row):
    """Return rows of the same probabilities in other orders, and labels of 50 % accuracy."""
    torch.manual_seed(0)
    orders = torch.stack([torch.randperm(len(row)) for _ in range(SIZE)])
    probs = row[orders]
    predicted = probs.argmax(dim=1)
    is_wrong = torch.rand(SIZE) < 0.5
    labels = torch.where(is_wrong, (predicted + 1) % len(row), predicted)
    return probs, labels


def saturated_row(dtype):
    return torch.tensor([1 - 1e-6, 5e-7, 5e-7], dtype=torch.float64).to(dtype)


def confident_row(dtype, num_classes=100, share=0.9999):
    rest = torch.rand(num_classes - 1, generator=torch.Generator().manual_seed(1)).double()
    rest = (1 - share) * rest / rest.sum()
    return torch.cat([torch.tensor([share], dtype=torch.float64), rest]).to(dtype)


def votes_row(dtype, num_classes=10):
    """Return shares of an ensemble's votes with Laplace smoothing."""
    counts = torch.tensor([7.0, 2, 1] + [0] * (num_classes - 3), dtype=torch.float64)
    return ((counts + 1) / (counts + 1).sum()).to(dtype)


def tied_values(probs, labels):
    """Return the ranking metrics of tied predictions: AUROC 50, AURC the error rate."""
    is_wrong = probs.argmax(dim=1) != labels
    error_rate = 100 * is_wrong.double().mean().item()
    return {'AUROC': 50.0, 'AURC': error_rate}


def as_map(logits, labels):
    """Return the logits and labels of rows as those of a map."""
    return logits.T.reshape(1, logits.shape[1], -1, 20), labels.reshape(1, -1, 20)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('row', [saturated_row, confident_row, votes_row])
def test_ranking_equal_probabilities_in_any_order_are_tied(row, dtype):
    probs, labels = permuted_predictions(row(dtype))
    expected = pytest.approx(tied_values(probs, labels), abs=1e-9)
    assert mmcalib.measure(probs, labels, RANKING) == expected
    logits = probs.log()
    maps = as_map(logits, labels)
    assert registered_values(*maps, RANKING) == expected
    for pair in ((logits, labels), maps):
        for door, values in by_door(*pair, metrics=RANKING).items():
            assert values == expected, door


def test_ranking_distinct_confidences_are_not_tied():
    conf = 1 - torch.tensor([1e-6, 1.001e-6, 1e-3, 1.00001e-3, 0.3, 0.3000001], dtype=torch.float64)
    correct = torch.tensor([True, False] * 3)
    probs = torch.stack([1 - conf, conf], dim=1)
    values = mmcalib.measure(probs, correct.long(), 'AUROC')
    pairs = [(a, b) for a in conf[correct] for b in conf[~correct]]
    expected = 100 * sum(float(a > b) for a, b in pairs) / len(pairs)
    assert values == pytest.approx(expected)


def test_ranking_neighbouring_numbers_are_not_tied():
    generator = np.random.default_rng(0)
    conf = generator.uniform(0.5, 1, 400).astype('float32')
    conf[0] = 0.75
    conf[1] = np.nextafter(conf[0], np.float32(1))
    correct = generator.random(400) < conf
    correct[:2] = [False, True]
    expected = references.failure_auroc(conf.tolist(), correct.tolist())
    actual = mmcalib.measure(conf=conf, correct=correct, metrics='AUROC')
    assert actual == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ('num_classes', 'scale'), [(30_000, 0.03), (1000, 0.001), (1000, 0.01), (100, 0.0001)]
)
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_ranking_small_confidences_equals_loop(num_classes, scale, dtype):
    """Check the softmax of logits that are nearly equal, as cosines without a temperature are."""
    torch.manual_seed(0)
    logits = scale * torch.randn(200, num_classes)
    probs = logits.to(dtype).softmax(dim=1)
    conf, predicted = probs.float().max(dim=1)
    # The more confident of two predictions is more often correct.
    is_correct = torch.rand(200) < conf.argsort().argsort() / 200
    labels = torch.where(is_correct, predicted, (predicted + 1) % num_classes)
    expected = references.failure_auroc(conf.tolist(), is_correct.tolist())
    assert expected > 80
    assert mmcalib.measure(probs, labels, 'AUROC') == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize('score', ['max_probability', 'energy', 'entropy'])
@pytest.mark.parametrize('row', [saturated_row, confident_row, votes_row])
def test_ood_scores_of_logits_in_any_order_are_tied(row, score):
    probs, _ = permuted_predictions(row(torch.float32))
    logits = probs.log().T.reshape(-1, 20, SIZE // 20)
    label = torch.zeros(20, SIZE // 20, dtype=torch.int64)
    label[:, ::2] = len(logits)
    metric = OODMetric([score], ood_index=len(logits))
    metric.process(None, [as_segmented(logits, logits.argmax(dim=0), label)])
    assert metric.evaluate(1)[f'ood/{score}/AUROC'] == pytest.approx(50.0, abs=1e-9)


def votes_on_edges(judges):
    """Return votes of judges for three classes without draws, and labels they are wrong about."""
    generator = np.random.default_rng(0)
    votes = generator.multinomial(judges, [0.5, 0.3, 0.2], 300)
    ordered = np.sort(votes, axis=1)
    votes = votes[(ordered[:, 0] > 0) & (ordered[:, 2] > ordered[:, 1])][:200]
    # The gaps alternate, since equal ones would be summed in either of two bins.
    is_wrong = generator.random(200) < 0.5 * (votes.max(axis=1) % 2)
    return torch.from_numpy(votes), torch.from_numpy((votes.argmax(axis=1) + is_wrong) % 3)


def error_of_votes(votes, correct, judges, num_bins):
    """Return the ECE in percent, of bins that are computed with integers."""
    gaps = [0.0] * num_bins
    for count, is_correct in zip(votes.tolist(), correct.tolist(), strict=True):
        gaps[max(math.ceil(Fraction(count * num_bins, judges)) - 1, 0)] += (
            is_correct - count / judges
        )
    return 100 * sum(abs(gap) for gap in gaps) / len(votes)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize(('judges', 'num_bins'), [(10, 10), (15, 15), (20, 10), (30, 15)])
def test_bins_confidences_on_edges_equal_integer_bins_by_every_door(judges, num_bins, dtype):
    votes, labels = votes_on_edges(judges)
    conf_votes, predicted = votes.max(dim=1)
    ece = error_of_votes(conf_votes, predicted == labels, judges, num_bins)
    by_class = [
        error_of_votes(votes[:, k], labels == k, judges, num_bins) for k in range(votes.shape[1])
    ]
    expected = pytest.approx({'ECE': ece, 'ClasswiseECE': np.mean(by_class)}, abs=1e-4)
    names = list(expected.expected)
    probs = (votes.double() / judges).to(dtype)
    maps = as_map(probs.log(), labels)
    options = dict(metrics=names, num_bins=num_bins)
    with_interval = mmcalib.measure(probs, labels, interval=0.9, **options)
    values_by_door = {
        'probabilities': mmcalib.measure(probs, labels, **options),
        'interval': {name: with_interval[name] for name in names},
        'registered': registered_values(*maps, names, num_bins=num_bins),
        **by_door(*maps, **options),
    }
    for door, values in values_by_door.items():
        assert values == expected, door
    tables = mmcalib.measure(probs, labels, names, num_bins=7).statistics.bins(num_bins)
    count, correct, sum_of_conf = tables
    assert 100 * (correct - sum_of_conf).abs().sum() / count.sum() == pytest.approx(ece, abs=1e-4)
