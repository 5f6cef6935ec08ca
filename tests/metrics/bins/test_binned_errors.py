"""ECE and AECE out of tables, against plain loops and the paper's definition."""

import numpy as np
import pytest
import torch
from references import (
    adaptive_calibration_error,
    classwise_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    overconfidence_error,
    published_adaptive_calibration_error,
    root_mean_square_calibration_error,
)

from mmcalib import metrics
from mmcalib.metrics import (
    ConfidenceBins,
    binned_calibration_error,
    equal_mass_bins,
    equal_mass_error_bound,
    equal_width_bins,
)
from mmcalib.metrics.bins import narrow_bins as narrow_module
from mmcalib.metrics.bins.conventions import proportional_positions


def bound_of(narrow, num_bins=15):
    table = narrow.table()
    positions = proportional_positions(table, narrow.spread() == 0, num_bins)
    return equal_mass_error_bound(table, narrow.spread(), positions)


def predictions(n, kind, seed=0):
    rng = np.random.default_rng(seed)
    conf = {
        'uniform': lambda: rng.uniform(0.1, 1, n),
        'saturated': lambda: np.float32(1 - rng.exponential(1e-4, n).clip(0, 0.9)).astype(float),
        'tied': lambda: rng.choice([0.2, 0.5, 0.6, 1.0], n),
        'ones': lambda: np.ones(n),
        'edges': lambda: rng.integers(0, 16, n) / 15,
    }[kind]()
    correct = rng.uniform(size=n) < conf * 0.8
    return torch.from_numpy(conf), torch.from_numpy(correct)


KINDS = ['uniform', 'saturated', 'tied', 'ones', 'edges']


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('n', [1, 7, 15, 301])
@pytest.mark.parametrize('num_bins', [1, 15, 20])
def test_exact_values_equal_plain_loops(kind, n, num_bins):
    conf, correct = predictions(n, kind)
    ece = binned_calibration_error(equal_width_bins(conf, correct, num_bins))
    assert ece == pytest.approx(expected_calibration_error(conf, correct, num_bins), abs=1e-9)
    table = ConfidenceBins().add(conf, correct).table()
    aece = binned_calibration_error(equal_mass_bins(table, num_bins))
    assert aece == pytest.approx(adaptive_calibration_error(conf, correct, num_bins), abs=1e-9)


@pytest.mark.parametrize('n', [50, 301, 5000])
def test_aece_agrees_with_the_published_definition_on_distinct_confidences(n):
    conf, correct = predictions(n, 'uniform')
    aece = binned_calibration_error(
        equal_mass_bins(ConfidenceBins().add(conf, correct).table(), 15)
    )
    # The published code drops the smallest confidence and moves at most one sample at each edge.
    assert abs(aece - published_adaptive_calibration_error(conf, correct)) <= 100 * 2 * 15 / n


def test_all_tied_aece_is_ece_where_the_published_code_says_zero():
    conf, correct = predictions(1000, 'ones')
    assert published_adaptive_calibration_error(conf, correct) == 0
    aece = binned_calibration_error(
        equal_mass_bins(ConfidenceBins().add(conf, correct).table(), 15)
    )
    ece = binned_calibration_error(equal_width_bins(conf, correct, 15))
    assert aece == pytest.approx(ece) == pytest.approx(100 * (1 - correct.double().mean().item()))


@pytest.mark.parametrize('kind', KINDS)
def test_fine_bins_lie_within_their_bound(kind, monkeypatch):
    conf, correct = predictions(50_000, kind)
    exact = ConfidenceBins().add(conf, correct)
    assert exact.exact
    monkeypatch.setattr(narrow_module, 'EXACT_LIMIT', 10_000)
    fine = ConfidenceBins().add(conf, correct)
    assert not fine.exact
    value, reference = (
        binned_calibration_error(equal_mass_bins(narrow.table(), 15)) for narrow in (fine, exact)
    )
    bound = bound_of(fine)
    assert abs(value - reference) <= bound + 1e-9
    assert bound < 0.1


def test_an_empty_table_is_nan():
    table = ConfidenceBins().table()
    empty = equal_width_bins(torch.empty(0), torch.empty(0, dtype=bool), 15)
    assert np.isnan(binned_calibration_error(empty))
    assert np.isnan(binned_calibration_error(equal_mass_bins(table, 15)))


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('num_bins', [1, 7, 15])
def test_other_errors_of_the_bins(kind, num_bins):
    conf, correct = predictions(300, kind)
    table = equal_width_bins(conf, correct, num_bins)
    for ours, oracle in (
        (metrics.binned_maximum_error, maximum_calibration_error),
        (metrics.binned_root_mean_square_error, root_mean_square_calibration_error),
        (metrics.binned_overconfidence_error, overconfidence_error),
        (metrics.binned_accuracy, lambda conf, correct, _: 100 * sum(correct) / len(conf)),
        (metrics.binned_confidence, lambda conf, correct, _: 100 * sum(conf) / len(conf)),
    ):
        expected = oracle(conf.tolist(), correct.tolist(), num_bins)
        assert ours(table).item() == pytest.approx(expected, abs=1e-9)
        # Tables with leading dimensions give as many errors.
        stacked = torch.stack([table, 2 * table]).expand(3, 2, *table.shape)
        torch.testing.assert_close(ours(stacked), ours(table).expand(3, 2))


@pytest.mark.parametrize('num_classes', [2, 5])
def test_classwise_error(num_classes):
    generator = torch.Generator().manual_seed(0)
    probs = torch.softmax(3 * torch.randn(num_classes, 200, generator=generator), dim=0)
    label = torch.randint(num_classes, (200,), generator=generator)
    table = metrics.classwise_bins(probs, label, 15)
    expected = classwise_calibration_error(probs.T.tolist(), label.tolist(), 15)
    assert metrics.binned_classwise_error(table).item() == pytest.approx(expected)
