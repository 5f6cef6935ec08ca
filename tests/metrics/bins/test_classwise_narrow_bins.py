"""Errors over bins of equal count of every class, against loops over all probabilities."""

import math
import pickle

import numpy as np
import pytest
import references
import torch

from mmcalib.metrics.bins.classwise_bins import classwise_bins
from mmcalib.metrics.bins.classwise_narrow_bins import ClasswiseNarrowBins, _bin_of, _size
from mmcalib.samples import predictions as predictions_module
from mmcalib.samples.predictions import of_probabilities


def draw(n, num_classes=4, scale=3.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(num_classes, n, generator=generator, dtype=torch.float64)
    probs = torch.softmax(logits, dim=0)
    return probs, torch.multinomial(probs.T.sqrt(), 1, generator=generator)[:, 0]


def narrow(probs, label, floor, **options):
    prediction = of_probabilities(probs, label, wanted=['classes'], floor=min(floor, 0.001))
    return ClasswiseNarrowBins(len(probs), floor, **options).add(prediction.classes)


@pytest.mark.parametrize('scale', [0.5, 3, 20])
@pytest.mark.parametrize('bits', [3, 8])
@pytest.mark.parametrize('threshold', [None, 0.01, 0.2])
def test_values_lie_within_their_bound(scale, bits, threshold):
    probs, label = draw(400, scale=scale)
    found = narrow(probs, label, threshold or 1e-4, bits=bits)
    value, bound = found.error(15, above_floor=threshold is not None)
    expected = references.classwise_adaptive_error(
        probs.T.tolist(), label.tolist(), threshold=threshold
    )
    assert abs(value - expected) <= bound + 1e-9
    assert bits == 3 or bound < 2  # of few bins, 400 like probabilities share some


@pytest.mark.parametrize('seed', range(20))
def test_bounds_hold_for_labels_that_fill_bins_at_one_end(seed):
    rng = np.random.default_rng(seed)
    prob = np.sort(rng.choice([1e-5, 3e-5, 0.02, 0.3, 0.9], 60) * rng.uniform(0.9, 1, 60))
    label = rng.integers(2, size=60)
    for level in (1e-5, 0.02, 0.3, 0.9):  # sorted within each group of probabilities
        inside = (prob > 0.85 * level) & (prob <= level)
        label[inside] = np.sort(label[inside])[:: rng.choice([-1, 1])]
    probs = torch.from_numpy(np.stack([1 - prob, prob]))
    value, bound = narrow(probs, torch.from_numpy(label), 1e-4, bits=3).error(10)
    expected = references.classwise_adaptive_error(probs.T.tolist(), label.tolist(), 10)
    assert abs(value - expected) <= bound + 1e-9


def test_few_values_are_exact_and_any_split_is_the_whole():
    probs, label = draw(300)
    probs = (probs * 8).round().clamp(1, 8) / 16  # values far apart, in bins of their own
    whole = narrow(probs, label, 1e-4)
    expected = references.classwise_adaptive_error(probs.T.tolist(), label.tolist())
    assert whole.error(15) == pytest.approx((expected, 0), abs=1e-9)
    parts = narrow(probs[:, :77], label[:77], 1e-4).merge(narrow(probs[:, 77:], label[77:], 1e-4))
    parts = pickle.loads(pickle.dumps(parts))
    assert parts.error(15) == pytest.approx(whole.error(15), abs=1e-9)


def test_bins_ascend_and_fit():
    prob = torch.cat([torch.logspace(-4, -0.01, 3000), 1 - torch.logspace(-8, -0.4, 3000)])
    prob = prob.double()[prob > 1e-4].sort().values
    for bits in (3, 8):
        index = _bin_of(prob, 1e-4, bits)
        assert (index.diff() >= 0).all() and index.min() >= 1
        assert index.max() < _size(1e-4, bits)
        assert _bin_of(torch.tensor([1.0, 0.5, 0.4999]), 1e-4, bits).diff().lt(0).all()
    assert ClasswiseNarrowBins(10_000, 1e-4)._tables.numel() * 8 < 100e6


def test_classes_without_anything_above_the_threshold_drop_out():
    probs = torch.tensor([[0.996, 0.9], [0.004, 0.1]], dtype=torch.float64)
    found = narrow(probs[:, :1], torch.tensor([0]), 0.01)
    assert found.error(15, above_floor=True)[0] == pytest.approx(0.4)
    assert math.isnan(ClasswiseNarrowBins(2, 0.01).error(15)[0])


def test_lists_are_counted_in_pieces(monkeypatch):
    probs, label = draw(300)
    whole = narrow(probs, label, 0.01)
    monkeypatch.setattr(predictions_module, 'LISTED_PIECE', 7)
    parts = narrow(probs, label, 0.01)
    torch.testing.assert_close(parts._tables, whole._tables, rtol=0, atol=1e-9)
    assert parts._extremes.equal(whole._extremes)
    torch.testing.assert_close(
        classwise_bins(probs, label, 15).sum(dim=2)[1:],
        torch.stack([torch.bincount(label).double(), probs.sum(dim=1)]),
    )
