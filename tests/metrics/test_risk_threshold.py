"""Thresholds at a risk: against loops, at their limits, and how often their bounds hold."""

import pytest
import references
import torch
from samples import image_confidences, image_narrow_bins

from mmcalib.metrics.counts import NUM_NARROW as NUM_NARROW_BINS
from mmcalib.metrics.counts import narrow_bin_thresholds
from mmcalib.metrics.risk_threshold import STARTS, risk_p_values, threshold_at_risk


@pytest.mark.parametrize(('kept', 'wrong'), [
    ([1, 1, 0, 1, 1], [0, 1, 0, 0, 0]),
    ([1] * 40 + [0] * 3, [0] * 43),
    ([0.5, 0.25, 1, 1, 0.75], [0, 0.25, 0.125, 0, 0]),
    ([1, 1, 1.0], [0.25, 1, 0]),
    ([0.9] * 80, [0.001] * 80),
    ([1, 1], [1, 1]),
])  # fmt: skip
@pytest.mark.parametrize('risk', [0.01, 0.05, 0.3])
def test_p_values_are_those_of_loops(kept, wrong, risk):
    expected = references.risk_p_value(kept, wrong, risk)
    shares = (torch.tensor(values, dtype=torch.float64)[:, None] for values in (kept, wrong))
    (found,) = risk_p_values(*shares, risk)
    assert found == pytest.approx(expected, rel=1e-9)


def test_of_nothing_kept_nothing_is_proven():
    for kept in (torch.zeros(0, 2), torch.zeros(7, 2)):
        assert risk_p_values(kept.double(), kept.double(), 0.5) == [1, 1]


@pytest.mark.parametrize(('count', 'pixels', 'spread'), [(200, 1, 0.0), (150, 30, 0.3)])
@pytest.mark.parametrize('risk', [0.02, 0.1, 0.2])
def test_the_threshold_is_that_of_loops(count, pixels, spread, risk):
    conf, correct = image_confidences(count, pixels=pixels, spread=spread)
    pairs = list(zip(conf.tolist(), correct.tolist(), strict=True))
    expected = references.threshold_at_risk(pairs, narrow_bin_thresholds().tolist()[1:], risk)
    found = threshold_at_risk(image_narrow_bins(conf, correct), risk)
    assert (found and found.threshold) == expected
    if found:
        kept = conf > found.threshold
        wrong = kept & ~correct
        assert found.coverage == pytest.approx(kept.double().mean().item())
        assert found.found_risk == pytest.approx((wrong.sum() / kept.sum()).item())
        assert found.found_risk < risk and found.num_images == count


def test_more_risk_or_less_probability_keeps_more():
    table = image_narrow_bins(*image_confidences(400, pixels=20))
    found = [threshold_at_risk(table, risk) for risk in (0.05, 0.1, 0.2)]
    assert found[0].coverage < found[1].coverage < found[2].coverage
    assert threshold_at_risk(table, 0.05, probability=0.5).coverage > found[0].coverage


def test_the_order_of_the_images_changes_nothing():
    table = image_narrow_bins(*image_confidences(100, pixels=20))
    order = torch.randperm(100, generator=torch.Generator().manual_seed(1))
    first, second = (threshold_at_risk(t, 0.2) for t in (table, table[order]))
    assert first.threshold == second.threshold
    assert first.coverage == pytest.approx(second.coverage)


def test_few_images_and_wrong_ones_prove_nothing():
    right = torch.zeros(50, 3, NUM_NARROW_BINS, dtype=torch.int32)
    right[:, :2, -1] = 1
    # 0.95^50 is 0.077, and of the budget of a start a fifth of 0.05 is left.
    assert threshold_at_risk(right, 0.05) is None
    more = right.repeat(2, 1, 1)  # 0.95^100 is 0.0059
    assert threshold_at_risk(more, 0.05).coverage == 1
    wrong = more.clone()
    wrong[:, 1] = 0
    assert threshold_at_risk(wrong, 0.05) is None
    assert threshold_at_risk(wrong[:0], 0.05) is None
    assert set(STARTS) <= set(narrow_bin_thresholds().tolist())


@pytest.mark.parametrize('value', [0, 1, -0.1, 5])
def test_shares_are_no_percentages(value):
    table = image_narrow_bins(*image_confidences(10))
    with pytest.raises(ValueError, match='risk must be'):
        threshold_at_risk(table, value)
    with pytest.raises(ValueError, match='probability must be'):
        threshold_at_risk(table, 0.05, probability=value)


@pytest.mark.parametrize(('count', 'pixels', 'spread'), [(150, 1, 0.0), (150, 20, 0.5)])
def test_the_bound_holds_in_19_of_20_validations(count, pixels, spread):
    """Of the images that a population of known risk is drawn from."""
    conf, correct = image_confidences(2000, pixels=pixels, spread=spread, seed=5)
    population, thresholds = image_narrow_bins(conf, correct), narrow_bin_thresholds()
    generator = torch.Generator().manual_seed(0)
    broken, proven, sets = 0, 0, 120
    for _ in range(sets):
        drawn = torch.randint(len(population), (count,), generator=generator)
        found = threshold_at_risk(population[drawn], 0.1)
        if found is None:
            continue
        proven += 1
        assert found.threshold in thresholds
        kept = conf > found.threshold
        broken += bool((kept & ~correct).sum() / kept.sum() > 0.1)
    assert proven > 0.8 * sets
    assert broken <= 0.05 * sets
