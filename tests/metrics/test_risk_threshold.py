"""Thresholds at a risk: loops and limits."""

import pytest
import references
import torch
from samples import image_confidences, image_narrow_bins

from mmcalib.metrics.log_bins import NUM_LOG_BINS, log_bin_thresholds
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
def test_risk_p_values_any_shares_equal_loop(kept, wrong, risk):
    expected = references.risk_p_value(kept, wrong, risk)
    kept_shares = torch.tensor(kept, dtype=torch.float64)[:, None]
    wrong_shares = torch.tensor(wrong, dtype=torch.float64)[:, None]
    (actual,) = risk_p_values(kept_shares, wrong_shares, risk)
    assert actual == pytest.approx(expected, rel=1e-9)


def test_risk_p_values_nothing_kept_are_1():
    for kept in (torch.zeros(0, 2), torch.zeros(7, 2)):
        assert risk_p_values(kept.double(), kept.double(), 0.5) == [1, 1]


@pytest.mark.parametrize(('count', 'pixels', 'spread'), [(200, 1, 0.0), (150, 30, 0.3)])
@pytest.mark.parametrize('risk', [0.02, 0.1, 0.2])
def test_threshold_at_risk_any_images_equals_loop(count, pixels, spread, risk):
    conf, correct = image_confidences(count, pixels=pixels, spread=spread)
    pairs = list(zip(conf.tolist(), correct.tolist(), strict=True))
    expected = references.threshold_at_risk(pairs, log_bin_thresholds().tolist()[1:], risk)
    bound = threshold_at_risk(image_narrow_bins(conf, correct), risk)
    if expected is None:
        assert bound is None
        return
    assert bound.threshold == expected
    kept = conf > bound.threshold
    wrong = kept & ~correct
    assert bound.coverage == pytest.approx(kept.double().mean().item())
    assert bound.observed_risk == pytest.approx((wrong.sum() / kept.sum()).item())
    assert bound.observed_risk < risk
    assert bound.num_images == count


def test_threshold_at_risk_few_or_wrong_images_is_none():
    correct = torch.zeros(50, 3, NUM_LOG_BINS, dtype=torch.int32)
    correct[:, :2, -1] = 1
    # The p-value is 0.95^50 = 0.077, and the first start has a level of 0.05 / 5.
    assert threshold_at_risk(correct, 0.05) is None
    correct = correct.repeat(2, 1, 1)  # The p-value is 0.95^100 = 0.0059.
    assert threshold_at_risk(correct, 0.05).coverage == 1
    wrong = correct.clone()
    wrong[:, 1] = 0
    assert threshold_at_risk(wrong, 0.05) is None
    assert threshold_at_risk(wrong[:0], 0.05) is None


def test_threshold_at_risk_failed_start_passes_no_level_on():
    assert set(STARTS) <= set(log_bin_thresholds().tolist())
    # The thresholds below the failed start would be proven if they were tested alone.
    conf = torch.tensor([0.6] * 30 + [0.4] * 270)[:, None]
    assert threshold_at_risk(image_narrow_bins(conf, conf < 0.5), 0.2) is None
    assert risk_p_values(torch.ones(300, 1).double(), (conf > 0.5).double(), 0.2)[0] < 1e-4
