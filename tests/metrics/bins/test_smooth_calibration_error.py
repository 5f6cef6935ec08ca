"""Smooth ECE against its definition as an integral, and against what relplot 1.0.3 printed."""

import math

import numpy as np
import pytest
import references
import torch
from overconfident import drawn_in_a_row

from mmcalib.metrics.bins import smooth_calibration_error as module
from mmcalib.metrics.bins.narrow_bins import ConfidenceBins


def narrow(conf, correct):
    return ConfidenceBins().add(torch.as_tensor(conf), torch.as_tensor(correct))


def smooth_error(conf, correct):
    return module.binned_smooth_error(narrow(conf, correct).table()).item()


@pytest.mark.parametrize(
    ('conf', 'correct'),
    [
        ([0.7], [True]),
        ([0.9, 0.9, 0.8, 0.3, 1.0], [True, False, True, True, False]),
        ([1.0, 1.0, 0.0], [False, False, True]),
        ([0.5, 0.5, 0.52, 0.51], [True, False, True, False]),
    ],
)
def test_it_is_its_definition(conf, correct):
    expected = references.smooth_calibration_error(conf, correct, steps=400)
    assert smooth_error(np.array(conf), np.array(correct)) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    ('n', 'share', 'printed'),
    [(1, 1, 32.6697), (50, 1, 10.6775), (3000, 0.9, 6.9331), (3000, 1, 2.0259),
     (3000, 0.5, 28.0754), (3000, 0.05, 53.3551)],
)  # fmt: skip
def test_relplot_prints_the_same(n, share, printed):
    # relplot.smECE(conf, correct), times 100, of the same predictions, which are drawn in a row. It
    # integrates over 200 points and finds the width to 0.1 points.
    conf, correct = drawn_in_a_row(n, share)
    assert smooth_error(conf, correct) == pytest.approx(printed, abs=0.06)


def test_edge_values():
    assert math.isnan(module.binned_smooth_error(ConfidenceBins().table()))
    for value, correct in ((1.0, True), (0.0, False)):
        assert smooth_error(np.full(5, value), np.full(5, correct)) == pytest.approx(0, abs=1e-9)
    # All residuals are alike and in one place, whose integral is 1 at any width.
    assert smooth_error(np.ones(5), np.zeros(5, dtype=bool)) == pytest.approx(100)
    tied = smooth_error(np.full(4, 0.5), np.array([True, False] * 2))
    assert tied == pytest.approx(0, abs=1e-9)


def test_fine_bins_lie_within_their_bound(monkeypatch):
    monkeypatch.setattr('mmcalib.metrics.bins.narrow_bins.EXACT_LIMIT', 1000)
    generator = torch.Generator().manual_seed(0)
    for power, bits in ((1, 2), (4, 2), (4, 6)):
        conf = 1 - torch.rand(20_000, generator=generator) ** power
        correct = torch.rand(20_000, generator=generator) < 1.6 * conf - 0.5  # gaps of both signs
        fine = ConfidenceBins(bits=bits).add(conf, correct)
        exact = ConfidenceBins(exact_limit=20_000).add(conf, correct)
        assert not fine.exact and exact.exact
        value, reference = (module.binned_smooth_error(c.table()) for c in (fine, exact))
        bound = module.smooth_error_bound(fine.table(), fine.spread())
        assert 0 < abs(value - reference) <= bound
        assert module.smooth_error_bound(exact.table(), exact.spread()) == 0
