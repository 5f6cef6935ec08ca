"""ECE and AECE out of tables, against plain loops and the paper's definition."""

import numpy as np
import pytest
import references
import torch
from netcal.metrics import ACE
from overconfident import drawn_in_a_row
from references import (
    adaptive_calibration_error,
    classwise_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    overconfidence_error,
    published_adaptive_calibration_error,
    root_mean_square_calibration_error,
)

from mmcalib.metrics.bins import binned_errors as module
from mmcalib.metrics.bins import narrow_bins as narrow_module
from mmcalib.metrics.bins.bin_tables import equal_mass_bins, equal_width_bins
from mmcalib.metrics.bins.binned_errors import binned_calibration_error, equal_mass_error_bound
from mmcalib.metrics.bins.classwise_bins import classwise_bins
from mmcalib.metrics.bins.conventions import proportional_positions
from mmcalib.metrics.bins.narrow_bins import ConfidenceBins


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
        (module.binned_maximum_error, maximum_calibration_error),
        (module.binned_root_mean_square_error, root_mean_square_calibration_error),
        (module.binned_overconfidence_error, overconfidence_error),
        (module.binned_accuracy, lambda conf, correct, _: 100 * sum(correct) / len(conf)),
        (module.binned_confidence, lambda conf, correct, _: 100 * sum(conf) / len(conf)),
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
    table = classwise_bins(probs, label, 15)
    expected = classwise_calibration_error(probs.T.tolist(), label.tolist(), 15)
    assert module.binned_classwise_error(table).item() == pytest.approx(expected)


def draw(n, share=0.8, seed=0):
    rng = np.random.default_rng(seed)
    conf = rng.uniform(0.1, 1, n)
    return conf, rng.uniform(size=n) < conf * share


def bins(conf, correct, num_bins=15):
    return equal_width_bins(torch.from_numpy(conf), torch.from_numpy(correct), num_bins)


@pytest.mark.parametrize('n', [1, 2, 20, 500])
@pytest.mark.parametrize('num_bins', [1, 15])
def test_estimates_and_parts_of_the_brier_score(n, num_bins):
    conf, correct = draw(n)
    table = bins(conf, correct, num_bins)
    parts = references.brier_parts(conf, correct, num_bins)
    expected = {
        'binned_debiased_error': references.debiased_calibration_error(conf, correct, num_bins),
        'binned_average_error': references.average_calibration_error(conf, correct, num_bins),
        'binned_reliability': parts[0],
        'binned_resolution': parts[1],
        'binned_uncertainty': parts[2],
    }
    for name, value in expected.items():
        function = getattr(module, name)
        assert function(table).item() == pytest.approx(value, abs=1e-9), name
        stacked = torch.stack([table, 3 * table]).expand(2, 2, *table.shape)
        assert function(stacked).shape == (2, 2), name


@pytest.mark.parametrize(
    ('n', 'share', 'printed'),
    [(50, 1, 11.4982307238022), (3000, 0.9, 8.055174642039459), (3000, 1, 0.33710398314419576),
     (3000, 0.5, 30.910155047093046), (3000, 0.05, 58.38059190549062)],
)  # fmt: skip
def test_uncertainty_calibration_prints_the_same(n, share, printed):
    # calibration.lower_bound_scaling_ce(conf, correct, p=2, debias=True, num_bins=15,
    # binning_scheme=get_equal_prob_bins), times 100, of the same predictions, drawn in a row.
    conf, correct = drawn_in_a_row(n, share)
    assert module.binned_debiased_error(bins(conf, correct)).item() == pytest.approx(printed)


@pytest.mark.parametrize('num_bins', [5, 15])
def test_average_calibration_error_is_netcals(num_bins):
    generator = torch.Generator().manual_seed(0)
    probs = torch.softmax(2 * torch.randn(400, 5, generator=generator), dim=1)
    label = torch.multinomial(probs.sqrt(), 1, generator=generator)[:, 0]
    conf, predicted = probs.max(dim=1)
    expected = 100 * ACE(num_bins).measure(probs.numpy(), label.numpy())
    found = module.binned_average_error(equal_width_bins(conf, predicted == label, num_bins)).item()
    assert found == pytest.approx(expected, abs=1e-4)


def test_the_debiased_error_of_a_calibrated_network_is_small():
    values = []
    for seed in range(200):
        table = bins(*draw(500, share=1, seed=seed))
        assert module.binned_debiased_error(table) <= module.binned_root_mean_square_error(table)
        values.append([module.binned_debiased_error(table).item() ** 2,
                       module.binned_root_mean_square_error(table).item() ** 2])  # fmt: skip
    debiased, plain = np.mean(values, axis=0)
    assert debiased < 0.25 * plain  # it is cut at 0, so not 0 in the mean


def test_the_parts_make_up_the_brier_score():
    conf, correct = draw(300)
    table = bins(conf, correct)
    mean = (table[2] / table[0])[np.ceil(conf * 15).astype(int) - 1].numpy()
    parts = module.binned_reliability, module.binned_resolution, module.binned_uncertainty
    reliability, resolution, uncertainty = (part(table).item() for part in parts)
    assert reliability - resolution + uncertainty == pytest.approx(np.square(mean - correct).mean())


@pytest.mark.parametrize('correct', [True, False])
def test_all_right_or_all_wrong(correct):
    conf = np.full(10, 0.9)
    table = bins(conf, np.full(10, correct))
    gap = 0.1 if correct else 0.9
    assert module.binned_average_error(table).item() == pytest.approx(100 * gap)
    assert module.binned_debiased_error(table).item() == pytest.approx(100 * gap)
    assert module.binned_reliability(table).item() == pytest.approx(gap**2)
    assert module.binned_resolution(table).item() == module.binned_uncertainty(table).item() == 0


def test_one_prediction_and_none():
    one = bins(np.array([0.9]), np.array([True]))
    assert module.binned_debiased_error(one).item() == 0  # no bin has two
    assert module.binned_average_error(one).item() == pytest.approx(10)
    for name in ('debiased_error', 'average_error', 'reliability', 'resolution', 'uncertainty'):
        assert getattr(module, f'binned_{name}')(torch.zeros(2, 3, 15)).isnan().all(), name
