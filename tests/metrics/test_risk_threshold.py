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
    expected = references.threshold_at_risk(pairs, log_bin_thresholds().tolist()[1:], risk)
    found = threshold_at_risk(image_narrow_bins(conf, correct), risk)
    assert (found and found.threshold) == expected
    if found:
        kept = conf > found.threshold
        wrong = kept & ~correct
        assert found.coverage == pytest.approx(kept.double().mean().item())
        assert found.observed_risk == pytest.approx((wrong.sum() / kept.sum()).item())
        assert found.observed_risk < risk and found.num_images == count


def test_few_images_and_wrong_ones_prove_nothing():
    right = torch.zeros(50, 3, NUM_LOG_BINS, dtype=torch.int32)
    right[:, :2, -1] = 1
    # 0.95^50 is 0.077, and of the budget of a start a fifth of 0.05 is left.
    assert threshold_at_risk(right, 0.05) is None
    more = right.repeat(2, 1, 1)  # 0.95^100 is 0.0059
    assert threshold_at_risk(more, 0.05).coverage == 1
    wrong = more.clone()
    wrong[:, 1] = 0
    assert threshold_at_risk(wrong, 0.05) is None
    assert threshold_at_risk(wrong[:0], 0.05) is None
    assert set(STARTS) <= set(log_bin_thresholds().tolist())
    # A start that fails leaves nothing to the thresholds below it, which alone would be proven.
    conf = torch.tensor([0.6] * 30 + [0.4] * 270)[:, None]
    assert threshold_at_risk(image_narrow_bins(conf, conf < 0.5), 0.2) is None
    assert risk_p_values(torch.ones(300, 1).double(), (conf > 0.5).double(), 0.2)[0] < 1e-4
