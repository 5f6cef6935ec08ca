"""The number of independent predictions against draws whose dependence is known."""

import numpy as np
import pytest
import torch

from mmcalib.posthoc.effective_number import effective_number


@pytest.mark.parametrize('share', [0.0, 0.2, 0.7, 1.0])
def test_against_the_design_effect_of_a_known_correlation(share):
    """Rows of a group share a part of their slope: N / (1 + (m - 1) rho) are independent."""
    rng, size, count = np.random.default_rng(0), 50, 4000
    common = rng.normal(size=(count, 1)).repeat(size, axis=1)
    slopes = np.sqrt(share) * common + np.sqrt(1 - share) * rng.normal(size=(count, size))
    groups = torch.arange(count).repeat_interleave(size)
    found = effective_number(torch.as_tensor(slopes).flatten(), groups)
    assert found == pytest.approx(count * size / (1 + (size - 1) * share), rel=0.06)


def test_as_a_loop_says():
    rng = np.random.default_rng(1)
    slopes, groups = rng.normal(size=200), rng.integers(0, 9, size=200)
    centred = slopes - slopes.mean()
    clustered = sum(sum(centred[groups == g]) ** 2 for g in range(9))
    expected = 200 * sum(s**2 for s in centred) / clustered
    found = effective_number(torch.as_tensor(slopes), torch.as_tensor(groups))
    assert found == pytest.approx(min(expected, 200))


def test_limits():
    slopes = torch.randn(30, dtype=torch.float64)
    assert effective_number(slopes, None) == 30
    assert effective_number(slopes, torch.zeros(30, dtype=torch.int64)) == 1
    assert effective_number(torch.zeros(30), torch.arange(30) // 10) == 3
