"""Diagrams on axes of log-odds, and the calibration of single images."""

import numpy as np
import pytest
import torch
from commands import call_here
from drawings import check_nothing_is_cut, words
from samples import classified, segmented

from mmcalib import reliability_diagram
from mmcalib.metrics import CalibrationMetric
from mmcalib.visualization import draw_image_calibration, draw_reliability


def statistics_of(samples):
    metric = CalibrationMetric(['ECE', 'AECE'])
    metric.process(None, samples)
    metric.evaluate(len(samples))
    return metric.statistics


def test_log_odds():
    found = statistics_of(segmented(6))
    figure = draw_reliability({'a': found}, scale='logit')
    top, below = figure.axes
    (curve,) = (line for line in top.lines if line.get_label() == 'bins of equal count')
    table = found.bins(found.num_bins, equal_mass=True).numpy()
    np.testing.assert_allclose(curve.get_xdata(), 100 * table[2] / table[0])
    np.testing.assert_allclose(curve.get_ydata(), 100 * table[1] / table[0])
    # 90 and 99 % are as far apart as 99 and 99.9 %, but for a few hundredths.
    ends = top.transData.transform([(x, 90) for x in (90, 99, 99.9)])[:, 0]
    assert np.diff(ends)[1] == pytest.approx(np.diff(ends)[0], rel=0.05)
    (shares,) = (patch.get_data().values for patch in below.patches)
    assert shares.sum() == pytest.approx(100)
    assert '99.99' in words(figure)
    check_nothing_is_cut(figure)
    check_nothing_is_cut(draw_reliability({'a': found, 'b': found}, scale='logit', overlay=True))


def test_saturated_confidences_are_in_the_last_bin():
    figure = reliability_diagram(conf=np.ones(50), correct=np.ones(50, bool), scale='logit')
    (shares,) = (patch.get_data().values for patch in figure.axes[1].patches)
    assert shares[-1] == 100
    with pytest.raises(ValueError, match='scale must be one of'):
        reliability_diagram(conf=[0.9], correct=[True], scale='log')


def test_each_image_is_a_point():
    samples = segmented(6)
    figure = draw_image_calibration({'a': statistics_of(samples)})
    (points,) = figure.axes[0].collections
    for sample, (conf, accuracy) in zip(samples, points.get_offsets(), strict=True):
        logits, label = sample['seg_logits']['data'].double(), sample['gt_sem_seg']['data'][0]
        trust, guess = logits.softmax(0).max(0)
        valid = label != 255
        assert conf == pytest.approx(100 * trust[valid].mean().item(), rel=1e-6)
        assert accuracy == pytest.approx(100 * (guess == label)[valid].double().mean().item())
    gap = np.median(abs(np.subtract(*np.asarray(points.get_offsets()).T)))
    assert f'median gap {gap:.2f} %' in words(figure) and '6 images' in words(figure)
    check_nothing_is_cut(figure)
    with pytest.raises(ValueError, match='no images of many pixels'):
        draw_image_calibration({'a': statistics_of(classified(6))})


def test_the_tool_draws_both(tmp_path, monkeypatch):
    torch.manual_seed(0)
    file = tmp_path / 'calibration.npz'
    statistics_of(segmented(6)).save(file)
    for kind, *options in (['by-image'], ['reliability', '--scale', 'logit']):
        out = tmp_path / f'{kind}.png'
        call_here('visualize.py', kind, file, '--out', out, *options, monkeypatch=monkeypatch)
        assert out.stat().st_size > 1000
