"""Confidence intervals: how often they hold the true value, and few or equal images."""

import math
import runpy
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import ROOT
from scipy import stats

from mmcalib.metrics import measure
from mmcalib.metrics.calibration_errors import calibration_error, maximum_error
from mmcalib.metrics.intervals import gap_intervals, interval_values, intervals
from mmcalib.metrics.unit_tables import UnitTables

# Its simulated images have a known error.
simulation = SimpleNamespace(**runpy.run_path(str(ROOT / 'tools/benchmarks/guarantees.py')))
OPTIONS = dict(level=0.95, num_bootstrap=200, seed=0, limits={})
ECE = {'ECE': calibration_error}


@pytest.mark.parametrize(('error', 'effects'), [(3, 'differ'), (0, 'differ in each bin')])
def test_gap_intervals_fifty_images_hold_the_true_error(error, effects):
    draw = partial(simulation.image_bins, simulation.EFFECTS[effects], error, 50)
    coverages, widths = simulation.coverages_and_widths(draw, error, sets=40, draws=200)
    coverage, basic_coverage, _ = coverages
    width, basic_width, _ = widths
    assert coverage >= 0.9 > basic_coverage
    assert width < 2 * basic_width


@pytest.mark.parametrize('error', [0, 3, 10])
def test_gap_intervals_independent_predictions_hold_the_true_error(error):
    draw = partial(simulation.independent_bins, error, 300)
    coverages, _ = simulation.coverages_and_widths(draw, error, sets=40, draws=200)
    assert coverages[0] >= 0.9


@pytest.mark.parametrize(('num_units', 'level'), [(3, 0.95), (10, 0.95), (100, 0.95), (100, 0.5)])
def test_intervals_of_a_mean_equal_those_of_student(num_units, level):
    values = torch.randn(num_units, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values += 50
    options = OPTIONS | dict(num_bootstrap=20_000, level=level)
    (low, high) = intervals(
        lambda weights: {'mean': weights @ values / weights.sum(dim=1)}, num_units, **options
    )['mean']
    error = values.std().item() / math.sqrt(num_units)
    expected = 2 * stats.t.ppf((1 + level) / 2, num_units - 1) * error
    # Resamples of three values are far from normal.
    assert high - low == pytest.approx(expected, rel=0.3 if num_units == 3 else 0.05)
    assert low < values.mean() < high


def test_intervals_one_unit_are_nan():
    bins = torch.tensor([[[10.0], [5], [8]]], dtype=torch.float64)
    assert all(map(math.isnan, gap_intervals(ECE, bins, **OPTIONS)['ECE']))
    bounds = intervals(lambda weights: {'mean': weights[:, 0]}, 1, **OPTIONS)
    assert all(map(math.isnan, bounds['mean']))


def test_gap_intervals_equal_units_have_width_0():
    bins = torch.tensor([[[10.0, 10], [5, 8], [8, 8]]], dtype=torch.float64)
    bins = bins * torch.arange(1, 8)[:, None, None]  # The images have different sizes.
    assert gap_intervals(ECE, bins, **OPTIONS)['ECE'] == pytest.approx((15, 15))


def test_gap_intervals_estimate_small_by_chance_has_a_width():
    # Every bin of the sum is calibrated, and none of an image is.
    conf = torch.full((2, 4), 5.0)
    correct = torch.tensor([[8.0, 2, 9, 1], [2, 8, 1, 9]])
    bins = torch.stack([torch.full((2, 4), 10.0), correct, conf], dim=1).double().repeat(10, 1, 1)
    assert calibration_error(bins.sum(dim=0)) == 0
    low, high = gap_intervals(ECE, bins, **OPTIONS)['ECE']
    assert low == 0 and high > 2


def test_gap_intervals_higher_coverage_is_wider_and_within_limits():
    bins = simulation.image_bins((0.6, 0.3), 10, 5, np.random.default_rng(0))
    errors = ECE | {'MCE': maximum_error}
    options = OPTIONS | dict(limits={'MCE': (0, 30)})
    wide = gap_intervals(errors, bins, **options | dict(level=0.99))
    narrow = gap_intervals(errors, bins, **options | dict(level=0.5))
    for name in errors:
        low, high = wide[name]
        inner_low, inner_high = narrow[name]
        assert 0 <= low <= inner_low <= inner_high <= high
    assert wide['MCE'][1] == 30


def test_interval_values_of_ece_equal_gap_intervals():
    bins = simulation.image_bins((0.6, 0.3), 10, 5, np.random.default_rng(0))
    tables = UnitTables.from_bins(bins)
    actual = interval_values(['ECE'], tables, level=0.5, num_bootstrap=200)
    expected = gap_intervals(ECE, bins, **OPTIONS | dict(level=0.5))['ECE']
    assert [*actual.values()] == pytest.approx(expected)


def test_interval_debiased_error_holds_the_true_one():
    true_error = 0.0
    num_held = 0
    for seed in range(30):
        bins = simulation.independent_bins(0, 100, np.random.default_rng(seed))
        tables = UnitTables.from_bins(bins)
        values = interval_values(['debiasedECE'], tables, level=0.9, num_bootstrap=100)
        if values['debiasedECE_low'] <= true_error <= values['debiasedECE_high']:
            num_held += 1
    assert num_held >= 27


def test_interval_resolution_has_none_and_says_why():
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    with pytest.raises(ValueError, match=r'resolution has no interval.*noise'):
        measure(probs, [0, 1], 'resolution', interval=0.9)
    assert 'resolution_low' not in measure(probs, [0, 1], ['resolution', 'ECE'], interval=0.9)
