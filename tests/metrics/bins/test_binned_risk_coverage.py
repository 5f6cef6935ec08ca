"""Figures of the order of confidence, against all orders of ties, peers, and the worst order."""

import math

import numpy as np
import pytest
import references
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torchmetrics.functional.classification import binary_auroc

from mmcalib.metrics.bins import binned_risk_coverage as module
from mmcalib.metrics.bins.narrow_bins import ConfidenceBins, condense

FIGURES = {
    'area_under_risk_coverage': module.binned_aurc,
    'area_under_generalized_risk_coverage': module.binned_augrc,
    'failure_auroc': module.binned_auroc,
    'average_precision': module.binned_aupr,
    'failure_fpr': module.binned_fpr,
    'risk_at_coverage': lambda table: module.binned_risk(table, 0.7),
}


def narrow(conf, correct):
    return ConfidenceBins().add(torch.as_tensor(conf), torch.as_tensor(correct)).table()


def draw(rng, n, levels):
    """Few predictions, many of them tied, of which some are right and some are wrong."""
    while True:
        conf, correct = rng.choice(levels, n), rng.uniform(size=n) < 0.6
        if 0 < correct.sum() < n:
            return conf, correct


@pytest.mark.parametrize('name', FIGURES)
@pytest.mark.parametrize('seed', range(6))
def test_the_mean_over_all_orders_of_ties(name, seed):
    rng = np.random.default_rng(seed)
    conf, correct = draw(rng, 7, [0.1, 0.5, 0.9, 1.0][: 2 + seed % 3])
    oracle = getattr(references, name)
    options = (0.7,) if name == 'risk_at_coverage' else ()
    expected = np.mean([oracle(o, *options) for o in references.orders_of(conf, correct)])
    assert FIGURES[name](narrow(conf, correct)).item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize('name', FIGURES)
def test_many_distinct_confidences(name):
    rng = np.random.default_rng(0)
    conf = rng.permutation(400) / 400
    correct = rng.uniform(size=400) < 0.3 + conf / 2
    options = (0.7,) if name == 'risk_at_coverage' else ()
    expected = getattr(references, name)(list(correct[np.argsort(-conf)]), *options)
    assert FIGURES[name](narrow(conf, correct)).item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize('seed', range(20))
@pytest.mark.parametrize('level', [0.1, 0.3, 0.5, 0.9])
def test_coverage_at_a_risk_is_of_the_mean_curve(seed, level):
    conf, correct = draw(np.random.default_rng(seed), 7, [0.1, 0.5, 0.9, 1.0][: 1 + seed % 4])
    curve = np.mean([references.risks(o) for o in references.orders_of(conf, correct)], axis=0)
    expected = references.coverage_at_risk(list(curve), level)
    assert module.binned_coverage(narrow(conf, correct), level).item() == pytest.approx(expected)


def test_levels_on_a_prediction_take_it_in():
    table = narrow(np.linspace(0.1, 1, 100), np.arange(100) >= 5)  # the 5 least confident are wrong
    assert module.binned_risk(table, 0.95).item() == 0
    assert module.binned_risk(table, 0.951).item() == pytest.approx(100 / 96)
    assert module.binned_coverage(table, 1 / 96).item() == 96
    assert module.binned_fpr(table).item() == 0


@pytest.mark.parametrize('kind', ['distinct', 'tied', 'one value'])
def test_auroc_is_that_of_scikit_learn(kind):
    rng = np.random.default_rng(1)
    conf = {'distinct': rng.uniform(size=500), 'tied': rng.integers(0, 9, 500) / 9,
            'one value': np.full(500, 0.5)}[kind]  # fmt: skip
    correct = rng.uniform(size=500) < conf
    expected = 100 * roc_auc_score(correct, conf)
    assert module.binned_auroc(narrow(conf, correct)).item() == pytest.approx(expected)


def test_average_precision_is_that_of_scikit_learn():
    rng = np.random.default_rng(1)
    conf = rng.permutation(500) / 500
    correct = rng.uniform(size=500) < conf
    expected = 100 * average_precision_score(correct, conf)
    assert module.binned_aupr(narrow(conf, correct)).item() == pytest.approx(expected)


def test_auroc_is_that_of_torchmetrics():
    rng = np.random.default_rng(2)
    conf = rng.integers(0, 50, 500) / 50
    correct = rng.uniform(size=500) < conf
    expected = binary_auroc(torch.from_numpy(conf), torch.from_numpy(correct).int())
    value = module.binned_auroc(narrow(conf, correct)).item()
    assert value == pytest.approx(100 * expected.item(), abs=1e-4)


@pytest.mark.parametrize(
    ('correct', 'aurc', 'augrc'), [([True] * 4, 0, 0), ([False] * 4, 100, 62.5), ([True], 0, 0)]
)
def test_all_right_or_all_wrong(correct, aurc, augrc):
    table = narrow(np.linspace(0.2, 0.8, len(correct)), np.array(correct))
    assert module.binned_aurc(table).item() == pytest.approx(aurc)
    assert module.binned_augrc(table).item() == pytest.approx(augrc)
    assert math.isnan(module.binned_auroc(table))
    assert math.isnan(module.binned_aupr(table))
    assert math.isnan(module.binned_fpr(table))
    assert module.binned_risk(table, 0.5).item() == pytest.approx(aurc)
    assert module.binned_coverage(table, 0.5).item() == (100 if correct[0] else 0)


def test_of_nothing_is_nan():
    table = ConfidenceBins().table()
    for figure in FIGURES.values():
        assert math.isnan(figure(table))
    assert math.isnan(module.binned_coverage(table, 0.5))


def adversarial(rng):
    """Cells of few values each, and the confidences in them, whose order is not to be known."""
    size = rng.integers(1, 7)
    edges = np.sort(rng.uniform(size=2 * size)).reshape(size, 2)
    parts = []
    for low, high in edges:
        n = rng.integers(1, rng.choice([2, 6, 40]) + 1)
        conf = np.full(n, low) if rng.uniform() < 0.2 else rng.uniform(low, high, n)
        correct = rng.uniform(size=n) < rng.choice([0, 0.1, 0.5, 0.9, 1])
        order = rng.integers(3)  # right ones first, wrong ones first, or as they come
        if order < 2:
            correct = np.sort(correct)[:: 1 - 2 * order]
            conf = np.sort(conf)
        parts.append((conf, correct))
    table = torch.tensor([[len(p), c.sum(), p.sum()] for p, c in parts], dtype=torch.float64).T
    spread = torch.tensor([np.ptp(p) for p, _ in parts])
    return table, spread, *(np.concatenate(x) for x in zip(*parts, strict=True))


@pytest.mark.parametrize('name', [*FIGURES, 'coverage_at_risk'])
def test_bounds_hold_for_many_distributions_and_are_attained(name):
    rng = np.random.default_rng(3)
    figure = FIGURES.get(name, lambda table: module.binned_coverage(table, 0.3))
    closest = 0.0
    for _ in range(300):
        table, spread, conf, correct = adversarial(rng)
        expected, found = figure(narrow(conf, correct)).item(), figure(table).item()
        assert math.isnan(expected) == math.isnan(found)
        if not math.isnan(found):
            bound = module.order_bound(figure, table, spread).item()
            assert abs(expected - found) <= bound + 1e-9
            closest = max(closest, abs(expected - found) / bound if bound else 0)
    assert closest > 0.99


def test_the_bound_of_augrc_has_a_formula():
    table, spread, *_ = adversarial(np.random.default_rng(4))
    count, right, _ = table
    expected = 50 * ((count - right) * right)[spread > 0].sum() / count.sum() ** 2
    figure = module.binned_augrc
    assert module.order_bound(figure, table, spread).item() == pytest.approx(expected.item())


def test_millions_in_fine_bins_lie_within_small_bounds(monkeypatch):
    monkeypatch.setattr('mmcalib.metrics.bins.narrow_bins.EXACT_LIMIT', 1000)
    generator = torch.Generator().manual_seed(0)
    conf = 1 - torch.rand(100_000, generator=generator) ** 4
    correct = torch.rand(100_000, generator=generator) < conf
    fine = ConfidenceBins().add(conf, correct)
    exact = ConfidenceBins(exact_limit=200_000).add(conf, correct)
    assert not fine.exact and exact.exact
    for figure in FIGURES.values():
        bound = module.order_bound(figure, fine.table(), fine.spread()).item()
        assert abs((figure(fine.table()) - figure(exact.table())).item()) <= bound + 1e-9
        assert bound < 0.01


def test_the_curve_ends_at_the_error_rate():
    conf, correct = np.array([0.9, 0.9, 0.8, 0.1]), np.array([True, False, True, False])
    coverage, risk = module.risk_coverage_curve(narrow(conf, correct))
    assert coverage.tolist() == [50, 75, 100]
    assert risk.tolist() == pytest.approx([50, 100 / 3, 50])
    assert module.risk_coverage_curve(condense(narrow(conf, correct))).shape == (2, 3)
