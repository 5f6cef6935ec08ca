"""Thresholds at a risk: loops and limits."""

import json

import numpy as np
import pytest
import references
import torch
from samples import image_confidences, image_narrow_bins

from mmcalib import threshold
from mmcalib.metrics.log_bins import NUM_LOG_BINS, log_bin_index, log_bin_thresholds
from mmcalib.metrics.risk_threshold import (
    STARTS,
    KeptShares,
    risk_p_values,
    threshold_at_risk,
)


def single_shares(kept, wrong):
    """Return the shares of groups, of one prediction each if all shares are 0 or 1."""
    kept = torch.tensor(kept, dtype=torch.float64)[:, None]
    wrong = torch.tensor(wrong, dtype=torch.float64)[:, None]
    are_single = all(((share == 0) | (share == 1)).all() for share in (kept, wrong))
    return KeptShares(kept, wrong, torch.ones_like(kept[:, 0]), are_single)


@pytest.mark.parametrize(('kept', 'wrong'), [
    ([1, 1, 0, 1, 1], [0, 1, 0, 0, 0]),
    ([1] * 40 + [0] * 3, [0] * 43),
    ([0.5, 0.25, 1, 1, 0.75], [0, 0.25, 0.125, 0, 0]),
    ([1, 1, 1.0], [0.25, 1, 0]),
    ([0.9] * 80, [0.001] * 80),
    ([1, 1], [1, 1]),
])  # fmt: skip
@pytest.mark.parametrize('risk', [0.01, 0.05, 0.3])
def test_risk_p_values_any_shares_equal_loop(kept, wrong, risk):
    expected = references.risk_p_value(kept, wrong, risk)
    (actual,) = risk_p_values(single_shares(kept, wrong), risk)
    assert actual == pytest.approx(expected, rel=1e-9)


def test_risk_p_values_nothing_kept_are_1():
    for kept in (torch.zeros(0, 2).double(), torch.zeros(7, 2).double()):
        for are_single in (False, True):
            shares = KeptShares(kept, kept, torch.ones_like(kept[:, 0]), are_single)
            assert risk_p_values(shares, 0.5) == [1, 1]


@pytest.mark.parametrize(('count', 'pixels', 'spread'), [(200, 1, 0.0), (150, 30, 0.3)])
@pytest.mark.parametrize('risk', [0.02, 0.1, 0.2])
def test_threshold_at_risk_any_images_equals_loop(count, pixels, spread, risk):
    conf, correct = image_confidences(count, pixels=pixels, spread=spread)
    pairs = list(zip(conf.tolist(), correct.tolist(), strict=True))
    expected = references.threshold_at_risk(pairs, log_bin_thresholds().tolist()[1:], risk)
    bound = threshold_at_risk(image_narrow_bins(conf, correct), risk)
    if expected is None:
        assert bound.threshold is None
        return
    assert bound.threshold == expected
    kept = conf > bound.threshold
    wrong = kept & ~correct
    assert bound.coverage == pytest.approx(kept.double().mean().item())
    assert bound.observed_risk == pytest.approx((wrong.sum() / kept.sum()).item())
    assert bound.observed_risk < risk
    assert bound.num_groups == count
    by_arrays = threshold(conf, correct, risk, 0.95)
    assert by_arrays.threshold == bound.threshold
    assert by_arrays.coverage == pytest.approx(bound.coverage)
    assert by_arrays.observed_risk == pytest.approx(bound.observed_risk)


def test_threshold_at_risk_few_or_wrong_images_is_none():
    correct = torch.zeros(50, 3, NUM_LOG_BINS, dtype=torch.int32)
    correct[:, :2, -1] = 1
    # The p-value is 0.95^50 = 0.077, and the first start has a level of 0.05 / 5.
    assert threshold_at_risk(correct, 0.05).threshold is None
    correct = correct.repeat(2, 1, 1)  # The p-value is 0.95^100 = 0.0059.
    assert threshold_at_risk(correct, 0.05).coverage == 1
    wrong = correct.clone()
    wrong[:, 1] = 0
    assert threshold_at_risk(wrong, 0.05).threshold is None
    assert threshold_at_risk(wrong[:0], 0.05).threshold is None


def test_threshold_at_risk_failed_start_passes_no_level_on():
    assert set(STARTS) <= set(log_bin_thresholds().tolist())
    # The thresholds below the failed start would be proven if they were tested alone.
    conf = torch.tensor([0.6] * 30 + [0.4] * 270)[:, None]
    assert threshold_at_risk(image_narrow_bins(conf, conf < 0.5), 0.2).threshold is None
    assert risk_p_values(single_shares([1] * 300, [1] * 30 + [0] * 270), 0.2)[0] < 1e-4


def test_threshold_groups_of_rows_equal_images_of_pixels():
    conf, correct = image_confidences(150, pixels=30, spread=0.3)
    by_images = threshold(conf, correct, 0.1, 0.95)
    groups = [f'patient {index // 30}' for index in range(conf.numel())]
    by_groups = threshold(conf.flatten(), correct.flatten(), 0.1, 0.95, groups)
    assert by_groups.threshold == by_images.threshold is not None
    assert by_groups.coverage == pytest.approx(by_images.coverage)
    assert (by_images.unit, by_groups.unit, by_groups.num_groups) == ('images', 'groups', 150)


def test_threshold_groups_of_other_sizes_equal_loop():
    conf, correct = (column[:, 0] for column in image_confidences(400, spread=0.0))
    groups = (torch.arange(400) ** 0.8).long()
    pairs = [(conf[groups == g].tolist(), correct[groups == g].tolist()) for g in groups.unique()]
    expected = references.threshold_at_risk(pairs, log_bin_thresholds().tolist()[1:], 0.15, 0.9)
    actual = threshold(conf, correct, 0.15, groups=groups)
    assert actual.threshold == expected is not None


def test_threshold_masked_values_are_left_out():
    conf, correct = (column[:, 0].numpy() for column in image_confidences(300))
    expected = threshold(conf[:200], correct[:200], 0.2)
    masked = np.ma.array(correct, mask=np.arange(300) >= 200)
    assert threshold(conf, masked, 0.2) == expected


@pytest.mark.parametrize('pixels', [1, 20])
def test_threshold_unproven_names_how_many_would_prove_it(pixels):
    conf, correct = image_confidences(40, pixels=pixels, spread=0.2)
    few = threshold(conf, correct, 0.05)
    assert few.threshold is None and few.coverage == 0 and few.observed_risk is None
    assert f'about {few.num_needed:,} like these' in str(few)
    copies = few.num_needed // 40
    assert threshold(conf.repeat(copies, 1), correct.repeat(copies, 1), 0.05).threshold is None
    copies = few.num_needed // 40 + 1
    assert threshold(conf.repeat(copies, 1), correct.repeat(copies, 1), 0.05).threshold is not None


def test_threshold_all_wrong_says_that_no_number_proves_it():
    bound = threshold([0.99] * 20, [False] * 20)
    assert bound.threshold is None and bound.num_needed is None
    assert 'would not prove one' in str(bound)


def test_threshold_result_is_json_and_a_sentence():
    bound = threshold([0.999] * 200, [True] * 200)
    assert json.loads(json.dumps(bound.to_dict())) == bound.to_dict()
    assert bound.to_dict()['threshold'] == bound.threshold
    assert f'Above a confidence of {bound.threshold:.6g}, at most 5 %' in str(bound)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_log_bins_hold_what_lies_above_their_edges(dtype):
    edges = log_bin_thresholds()
    near = torch.cat([edges - 1e-12, edges, edges + 1e-12, torch.linspace(0, 1, 1001)])
    conf = near[(near >= 0.5) & (near <= 1 - 1e-6)].to(dtype)
    index = log_bin_index(1 - conf)
    for number, edge in enumerate(edges):
        assert torch.equal(index >= number, conf.double() > edge)
