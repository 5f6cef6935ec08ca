"""Equal confidences are tied through every door, whatever the last bits of their sums."""

import numpy as np
import pytest
import references
import torch
from samples import as_segmented
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mmcalib import evaluate, measure
from mmcalib.metrics import counts
from mmcalib.openmmlab.metrics import CalibrationMetric, OODMetric

NAMES = ['AUROC', 'AURC', 'AUGRC', 'FPR95', 'risk@coverage_0.5', 'coverage@risk_0.3', 'AECE']
SIZE = (4, 8)


def tied_probabilities(num_classes, confidences, n=640):
    """Return probabilities (N, K), labels, confidences and correctness.

    High classes are right more often, so an order of ties by class would not be chance.
    """
    generator = torch.Generator().manual_seed(num_classes)
    levels = torch.tensor(confidences, dtype=torch.float64)
    conf = levels[torch.randint(len(levels), (n,), generator=generator)]
    predicted = torch.randint(num_classes, (n, 1), generator=generator)
    rest = 0.1 + torch.rand(n, num_classes, generator=generator, dtype=torch.float64)
    rest.scatter_(1, predicted, 0)
    probs = rest / rest.sum(1, keepdim=True) * (1 - conf[:, None])
    probs.scatter_(1, predicted, conf[:, None])
    predicted = predicted[:, 0]
    accuracy = 0.2 + 0.7 * predicted / (num_classes - 1)
    correct = torch.rand(n, generator=generator) < accuracy
    labels = torch.where(correct, predicted, (predicted + 1) % num_classes)
    return probs, labels, conf, correct


def as_maps(rows, labels):
    """Return rows as maps of `SIZE`, and their labels."""
    num_maps = len(rows) // (SIZE[0] * SIZE[1])
    maps = rows.view(num_maps, *SIZE, -1).permute(0, 3, 1, 2).contiguous()
    return maps, labels.view(num_maps, *SIZE)


def values_by_evaluate(logits, labels):
    loader = DataLoader(TensorDataset(logits, labels), batch_size=7)
    return evaluate(nn.Identity(), loader, NAMES, ignore_index=-1)


def values_by_metric(samples):
    metric = CalibrationMetric(NAMES, ignore_index=-1)
    metric.process(None, samples)
    values = metric.evaluate(len(samples))
    return {name: values[f'calibration/{name}'] for name in NAMES}


def values_by_metric_on_maps(logits, labels):
    maps = zip(*as_maps(logits, labels), strict=True)
    return values_by_metric([as_segmented(z, z.argmax(0), y) for z, y in maps])


def values_by_metric_on_rows(logits, labels):
    rows = zip(logits.softmax(1), labels, strict=True)
    return values_by_metric([{'pred_score': p, 'gt_label': y[None]} for p, y in rows])


DOORS = {
    'measure': lambda logits, labels: measure(logits.exp(), labels, NAMES),
    'measure, softmax': lambda logits, labels: measure(logits.softmax(1), labels, NAMES),
    'evaluate': values_by_evaluate,
    'evaluate, maps': lambda logits, labels: values_by_evaluate(*as_maps(logits, labels)),
    'metric': values_by_metric_on_rows,
    'metric, maps': values_by_metric_on_maps,
}


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('confidences', [[0.6], [0.9, 0.8, 0.55], [1 - 2**-12], [1 - 1e-6]])
@pytest.mark.parametrize('num_classes', [3, 100])
@pytest.mark.parametrize('door', DOORS)
def test_ranking_tied_confidences_equals_that_of_the_confidences(
    door, num_classes, confidences, dtype
):
    probs, labels, conf, correct = tied_probabilities(num_classes, confidences)
    expected = measure(conf=conf, correct=correct, metrics=NAMES)
    if len(confidences) == 1:
        assert expected['AUROC'] == 50
    actual = DOORS[door](probs.log().to(dtype), labels)
    assert actual == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize('door', DOORS)
def test_ranking_smoothed_votes_equals_loop(door):
    """Check shares of five votes for three classes, with one added to each class."""
    generator = np.random.default_rng(0)
    votes = generator.multinomial(5, [0.5, 0.3, 0.2], 320)
    probs = torch.from_numpy((votes + 1) / 8)
    labels = torch.from_numpy(generator.integers(0, 3, 320))
    conf = ((votes.max(1) + 1) / 8).tolist()
    expected = references.failure_auroc(conf, (probs.argmax(1) == labels).tolist())
    actual = DOORS[door](probs.log().float(), labels)['AUROC']
    assert actual == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize('door', ['evaluate, maps', 'metric, maps'])
def test_ranking_many_smoothed_votes_equals_loop(door, monkeypatch):
    """Check confidences in eighths, which are edges of the fine bins."""
    monkeypatch.setattr(counts, 'EXACT_LIMIT', 100)
    test_ranking_smoothed_votes_equals_loop(door)


@pytest.mark.parametrize('n', [300, 4000])
@pytest.mark.parametrize('num_classes', [3, 1000])
def test_ranking_ties_beside_distinct_confidences_equals_that_of_the_confidences(num_classes, n):
    """Check half of the predictions with one confidence, and half with those of a network."""
    generator = torch.Generator().manual_seed(n)
    probs, _, tied, _ = tied_probabilities(num_classes, [0.9], n)
    distinct = 3 * torch.randn(n, num_classes, generator=generator)
    logits = torch.cat([probs.log().float(), distinct])
    predicted = logits.argmax(1)
    correct = torch.rand(2 * n, generator=generator) < 0.2 + 0.7 * predicted / (num_classes - 1)
    labels = torch.where(correct, predicted, (predicted + 1) % num_classes)
    conf = torch.cat([tied, distinct.double().softmax(1).amax(1)])
    expected = measure(conf=conf, correct=correct, metrics='AUROC')
    actual = measure(logits.softmax(1), labels, 'AUROC')
    assert actual == pytest.approx(expected, abs=1e-3)


def test_ranking_ties_beside_a_dense_row_keeps_the_order_of_the_row():
    """Check 4,000 confidences one float32 apart, any two of which rounding may separate."""
    generator = np.random.default_rng(0)
    dense = 0.999 + np.arange(4000) * 2.0**-24
    conf = np.concatenate([np.full(6000, 0.6), dense])
    accuracy = np.concatenate([np.full(6000, 0.5), np.linspace(0, 1, 4000)])
    correct = generator.random(10_000) < accuracy
    expected = measure(conf=conf, correct=correct, metrics='AUROC')
    rounded = conf.astype('float32')
    rounded[:6000:2] += np.float32(1e-7)
    rounded[:6000] = np.where(correct[:6000], rounded[:6000].max(), rounded[:6000].min())
    actual = measure(conf=rounded, correct=correct, metrics='AUROC')
    assert actual == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize('conf', [0.5, 0.75, 1 - 2**-12])
def test_ranking_many_tied_at_a_bin_edge_is_chance(conf, monkeypatch):
    monkeypatch.setattr(counts, 'EXACT_LIMIT', 100)
    probs, labels, _, _ = tied_probabilities(21, [conf])
    for door in ('evaluate, maps', 'metric, maps'):
        assert DOORS[door](probs.log().float(), labels)['AUROC'] == pytest.approx(50, abs=1e-6)


def test_ranking_distinct_confidences_equals_loop():
    """Check that neighbouring float32 values stay distinct where they are neighbours by chance."""
    generator = np.random.default_rng(0)
    conf = generator.uniform(0.5, 1, 400).astype('float32')
    conf[0] = 0.75
    conf[1] = np.nextafter(conf[0], np.float32(1))
    correct = generator.random(400) < conf
    correct[:2] = [False, True]
    expected = references.failure_auroc(conf.tolist(), correct.tolist())
    assert measure(conf=conf, correct=correct, metrics='AUROC') == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize('score', ['max_probability', 'energy', 'entropy'])
def test_ood_metric_tied_scores_are_chance(score):
    """Check logits that differ only in their order, with other orders in-distribution than OOD."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(100, generator=generator)
    order = torch.rand(100, 20, 30, generator=generator).argsort(0)
    maps = logits[order]
    predicted = maps.argmax(0)
    label = torch.where(predicted < 50, 0, 7)
    metric = OODMetric((score,), ood_index=7)
    metric.process(None, [as_segmented(maps, predicted, label)])
    assert metric.evaluate(1)[f'ood/{score}/AUROC'] == pytest.approx(50, abs=1e-6)
