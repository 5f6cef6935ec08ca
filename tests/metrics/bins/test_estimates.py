"""Estimates of bins against plain loops, netcal, and what uncertainty-calibration 0.1.4 printed."""

import numpy as np
import pytest
import references
import torch
from netcal.metrics import ACE

from mmcalib.metrics import binned_root_mean_square_error, equal_width_bins
from mmcalib.metrics.bins import estimates as module


def draw(n, share=0.8, seed=0):
    rng = np.random.default_rng(seed)
    conf = rng.uniform(0.1, 1, n)
    return conf, rng.uniform(size=n) < conf * share


def bins(conf, correct, num_bins=15):
    return equal_width_bins(torch.from_numpy(conf), torch.from_numpy(correct), num_bins)


@pytest.mark.parametrize('n', [1, 2, 20, 500])
@pytest.mark.parametrize('num_bins', [1, 15])
def test_plain_loops(n, num_bins):
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
    rng = np.random.default_rng(0)
    for count, part in ((1, 1), (50, 1), (3000, 0.9), (3000, 1), (3000, 0.5), (3000, 0.05)):
        conf = rng.uniform(0.1, 1, count)
        correct = rng.uniform(size=count) < conf * part
        if (count, part) == (n, share):
            break
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
        assert module.binned_debiased_error(table) <= binned_root_mean_square_error(table)
        values.append([module.binned_debiased_error(table).item() ** 2,
                       binned_root_mean_square_error(table).item() ** 2])  # fmt: skip
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
