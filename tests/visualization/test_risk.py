"""Risk–coverage curves of predictions and of images, against plain loops."""

import numpy as np
import pytest
import torch
from drawings import statistics, table, words

from mmcalib.metrics.ranking import aurc
from mmcalib.visualization import draw_image_risk, draw_risk_coverage, read_image_scores


def test_risk_coverage_metrics_printed_else_computed():
    runs = {'a': statistics(protocol='image', AURC=12.5), 'b': statistics()}
    text = words(draw_risk_coverage(runs))
    computed = aurc(statistics().narrow_bins).item()
    for part in (
        'AURC 12.50 %, AUGRC', 'n = 500, protocol image', 'coverage (%)', 'best order',
        'errors among the accepted (%)', 'by chance', f'AURC {computed:.2f} %',
    ):  # fmt: skip
        assert part in text


def test_risk_coverage_curve_equals_bins():
    cells = torch.tensor([[4.0, 0, 4, 2], [1, 0, 3, 2], [1.2, 0, 3, 1.9]], dtype=torch.float64)
    (axes,) = draw_risk_coverage({'': statistics(cells)}).axes
    curve, end, best, chance, *_ = axes.lines
    np.testing.assert_allclose(curve.get_xdata(), [0, 20, 60, 100])
    np.testing.assert_allclose(curve.get_ydata(), [0, 0, 100 / 6, 40])
    assert (list(end.get_xdata()), list(end.get_ydata())) == ([100], [40])
    assert set(chance.get_ydata()) == {40}
    covered, risk = best.get_data()
    for x, y in zip(covered, risk, strict=True):  # 6 of 10 are right
        assert y == pytest.approx(max(0, 100 * (1 - 60 / x)) if x else 0, abs=1e-9)
    right = torch.tensor([[1.0, 4], [0, 4], [0.5, 3.2]], dtype=torch.float64)
    wrong_first = draw_risk_coverage({'': statistics(right[:, :1])}).axes[0]
    assert wrong_first.lines[0].get_ydata() == pytest.approx([100, 100])
    assert wrong_first.get_ylim()[1] == 100
    assert draw_risk_coverage({'': statistics(right[:, 1:])}).axes[0].get_ylim()[1] < 0.02


def test_risk_coverage_overlay_has_each_curve():
    runs = {f'run {i}': statistics(table(seed=i)) for i in range(5)}
    (axes,) = draw_risk_coverage(runs, overlay=True).axes
    curves = [line for line in axes.lines if line.get_label().startswith('run')]
    for curve, (name, run) in zip(curves, runs.items(), strict=True):
        assert curve.get_label().startswith(name)
        count, correct, _ = run.narrow_bins.flip(1).cumsum(1)
        np.testing.assert_allclose(curve.get_ydata()[1:], 100 * (1 - correct / count))
    assert len({curve.get_color() for curve in curves}) == 5


RISKS = np.array([0.5, 0.0, np.nan, 0.25, 1.0])
SCORES = {'good': np.array([0.6, 0.9, 1.0, 0.7, 0.1]), 'tied': np.ones(5)}


def test_image_risk_curves_equal_running_means():
    curves, good, tied = draw_image_risk({'a run': (SCORES, RISKS)}).axes
    expected = np.cumsum([0, 0.25, 0.5, 1]) / [1, 2, 3, 4] * 100
    by_score, best, by_chance, *_ = (line.get_ydata() for line in curves.lines)
    np.testing.assert_allclose(by_score[1:], expected)
    np.testing.assert_allclose(best[1:], expected)  # the score has found the best order
    np.testing.assert_allclose(by_chance, 100 * 1.75 / 4)
    np.testing.assert_allclose(good.collections[0].get_offsets()[:, 1], [0, 25, 50, 100])
    np.testing.assert_allclose(good.lines[0].get_ydata()[1:], expected)
    np.testing.assert_allclose(tied.lines[0].get_ydata(), by_chance)
    assert tied.get_title().startswith('tied') and curves.get_title() == 'a run, 4 images'
    assert good.collections[0].get_facecolor()[0, :3] != pytest.approx(
        tied.collections[0].get_facecolor()[0, :3]
    )
    two = draw_image_risk({'a': (SCORES, RISKS), 'b': (SCORES, RISKS[::-1])})
    titles = [axes.get_title().split('\n')[0] for axes in two.axes]
    assert titles == ['a, 4 images', 'a, good', 'a, tied', 'b, good', 'b, tied']


def test_read_image_scores_returns_scores_and_risks(tmp_path):
    file = tmp_path / 'images.csv'
    file.write_text('image,risk,confidence\na.png,0.25,0.9\nb.png,nan,0.5\n')
    scores, risks = read_image_scores(file)
    np.testing.assert_equal(risks, [0.25, np.nan])
    np.testing.assert_equal(scores, {'confidence': np.array([0.9, 0.5])})
