"""Predictions that are equal but for the order of their classes are tied, by every door."""

import pytest
import torch
from samples import as_segmented
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mmcalib
from mmcalib.openmmlab.metrics import CalibrationMetric, OODMetric

RANKING = ['AUROC', 'AURC']
SIZE = 400


def permuted(row, seed=0):
    """Rows of the same probabilities in other orders, and labels that half of them predict."""
    generator = torch.Generator().manual_seed(seed)
    orders = torch.stack([torch.randperm(len(row), generator=generator) for _ in range(SIZE)])
    probs = row[orders]
    predicted = probs.argmax(dim=1)
    is_wrong = torch.rand(SIZE, generator=generator) < 0.5
    labels = torch.where(is_wrong, (predicted + 1) % len(row), predicted)
    return probs, labels


def saturated(dtype):
    return torch.tensor([1 - 1e-6, 5e-7, 5e-7], dtype=torch.float64).to(dtype)


def confident(dtype, num_classes=100, share=0.9999):
    rest = torch.rand(num_classes - 1, generator=torch.Generator().manual_seed(1)).double()
    rest = (1 - share) * rest / rest.sum()
    return torch.cat([torch.tensor([share], dtype=torch.float64), rest]).to(dtype)


def votes(dtype, num_classes=10):
    """Shares of an ensemble's votes with Laplace smoothing."""
    counts = torch.tensor([7.0, 2, 1] + [0] * (num_classes - 3), dtype=torch.float64)
    return ((counts + 1) / (counts + 1).sum()).to(dtype)


def tied(probs, labels):
    """The ranking metrics of predictions that are all tied: AUROC 50, AURC the error rate."""
    is_wrong = probs.argmax(dim=1) != labels
    error_rate = 100 * is_wrong.double().mean().item()
    return {'AUROC': 50.0, 'AURC': error_rate}


def by_measure(probs, labels):
    return mmcalib.measure(probs, labels, RANKING)


def by_evaluate(probs, labels):
    loader = DataLoader(TensorDataset(probs.log(), labels), batch_size=37)
    return mmcalib.evaluate(nn.Identity(), loader, RANKING)


def by_evaluate_of_maps(probs, labels):
    logits = probs.log().T.reshape(1, -1, 20, SIZE // 20)
    loader = DataLoader(TensorDataset(logits, labels.reshape(1, 20, SIZE // 20)))
    return mmcalib.evaluate(nn.Identity(), loader, RANKING)


def by_metric(probs, labels):
    logits = probs.log().T.reshape(-1, 20, SIZE // 20)
    metric = CalibrationMetric(RANKING)
    label = labels.reshape(20, SIZE // 20)
    metric.process(None, [as_segmented(logits, logits.argmax(dim=0), label)])
    values = metric.evaluate(1)
    return {name: values[f'calibration/{name}'] for name in RANKING}


@pytest.mark.parametrize('door', [by_measure, by_evaluate, by_evaluate_of_maps, by_metric])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('row', [saturated, confident, votes])
def test_ranking_equal_probabilities_in_any_order_are_tied(row, dtype, door):
    probs, labels = permuted(row(dtype))
    expected = tied(probs, labels)
    assert door(probs, labels) == pytest.approx(expected, abs=1e-9)


def test_ranking_distinct_confidences_are_not_tied():
    conf = 1 - torch.tensor([1e-6, 1.001e-6, 1e-3, 1.00001e-3, 0.3, 0.3000001], dtype=torch.float64)
    correct = torch.tensor([True, False] * 3)
    probs = torch.stack([1 - conf, conf], dim=1)
    values = mmcalib.measure(probs, correct.long(), 'AUROC')
    pairs = [(a, b) for a in conf[correct] for b in conf[~correct]]
    expected = 100 * sum(float(a > b) for a, b in pairs) / len(pairs)
    assert values == pytest.approx(expected)


@pytest.mark.parametrize('score', ['max_probability', 'energy', 'entropy'])
@pytest.mark.parametrize('row', [saturated, confident, votes])
def test_ood_scores_of_logits_in_any_order_are_tied(row, score):
    probs, _ = permuted(row(torch.float32))
    logits = probs.log().T.reshape(-1, 20, SIZE // 20)
    label = torch.zeros(20, SIZE // 20, dtype=torch.int64)
    label[:, ::2] = len(logits)
    metric = OODMetric([score], ood_index=len(logits))
    metric.process(None, [as_segmented(logits, logits.argmax(dim=0), label)])
    assert metric.evaluate(1)[f'ood/{score}/AUROC'] == pytest.approx(50.0, abs=1e-9)
