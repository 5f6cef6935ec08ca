"""Risk–coverage curves of predictions and of images, against plain loops."""

import numpy as np
import pytest
import torch
from drawings import check_nothing_is_cut, statistics, table, words

from mmcalib.metrics.ranking import aurc
from mmcalib.visualization import draw_image_risk, draw_risk_coverage, read_image_scores, to_rgb


def test_figures_are_those_that_were_printed_else_computed():
    text = words(draw_risk_coverage({'run': statistics(protocol='image', AURC=12.5)}))
    for part in ('run', 'AURC 12.50 %, AUGRC', 'n = 500, protocol image', 'coverage (%)',
                 'risk: errors among the accepted (%)', 'best order', 'by chance'):  # fmt: skip
        assert part in text
    computed = aurc(statistics().narrow_bins).item()
    assert f'AURC {computed:.2f} %' in words(draw_risk_coverage({'run': statistics()}))


def test_the_curve_is_that_of_the_cells():
    cells = torch.tensor([[4.0, 0, 4, 2], [1, 0, 3, 2], [1.2, 0, 3, 1.9]], dtype=torch.float64)
    (axes,) = draw_risk_coverage({'': statistics(cells)}).axes
    curve, end, best, chance, *_ = axes.lines
    np.testing.assert_allclose(curve.get_xdata(), [0, 20, 60, 100])
    np.testing.assert_allclose(curve.get_ydata(), [0, 0, 100 / 6, 40])
    assert (end.get_xdata(), end.get_ydata()) == ([100], [40])
    assert set(chance.get_ydata()) == {40}
    covered, risk = best.get_data()
    for x, y in zip(covered, risk, strict=True):  # 6 of 10 are right
        assert y == pytest.approx(max(0, 100 * (1 - 60 / x)) if x else 0, abs=1e-9)


@pytest.mark.parametrize('correct', [0.0, 1.0])
def test_all_right_or_all_wrong(correct):
    cells = torch.tensor([[5.0], [5 * correct], [4]], dtype=torch.float64)
    figure = draw_risk_coverage({'run': statistics(cells)})
    assert to_rgb(figure).shape[2] == 3
    assert figure.axes[0].get_ylim()[1] == (100 if not correct else pytest.approx(0.0115))


@pytest.mark.parametrize('count', [1, 2, 5])
def test_side_by_side_and_overlaid(count):
    runs = {f'run {i}': statistics(table(seed=i)) for i in range(count)}
    for overlay in (False, True):
        figure = draw_risk_coverage(runs, overlay=overlay)
        assert len(figure.axes) == (1 if overlay else count)
        check_nothing_is_cut(figure)
        assert all(f'run {i}\n' in words(figure) for i in range(count))


def test_what_cannot_be_drawn_is_said():
    with pytest.raises(ValueError, match='no run'):
        draw_risk_coverage({})
    with pytest.raises(ValueError, match="'run' has no predictions"):
        draw_risk_coverage({'run': statistics(torch.zeros(3, 5))})


RISKS = np.array([0.5, 0.0, np.nan, 0.25, 1.0])
SCORES = {'good': np.array([0.6, 0.9, 1.0, 0.7, 0.1]), 'tied': np.ones(5)}


def test_curves_are_the_mean_risks_of_the_first_images():
    figure = draw_image_risk(SCORES, RISKS, name='a run')
    curves, good, tied = figure.axes
    expected = np.cumsum([0, 0.25, 0.5, 1]) / [1, 2, 3, 4] * 100
    by_score, by_chance, best = (line.get_ydata() for line in curves.lines)
    np.testing.assert_allclose(by_score[1:], expected)
    np.testing.assert_allclose(best[1:], expected)  # the score has found the best order
    np.testing.assert_allclose(by_chance, 100 * 1.75 / 4)
    np.testing.assert_allclose(good.collections[0].get_offsets()[:, 1], [0, 25, 50, 100])
    np.testing.assert_allclose(good.lines[0].get_ydata(), expected)
    assert tied.get_title().startswith('tied')
    assert '4 images' in curves.get_title()


def test_the_file_of_a_metric_is_read(tmp_path):
    file = tmp_path / 'images.csv'
    file.write_text('image,risk,confidence\na.png,0.25,0.9\nb.png,nan,0.5\n')
    scores, risks = read_image_scores(file)
    np.testing.assert_equal(risks, [0.25, np.nan])
    np.testing.assert_equal(scores, {'confidence': np.array([0.9, 0.5])})


def test_what_has_nothing_to_draw_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match='ImageScoreMetric'):
        read_image_scores(tmp_path / 'none.csv')
    (tmp_path / 'other.csv').write_text('image,label\na,1\n')
    with pytest.raises(ValueError, match=r"first line is \['image', 'label'\]"):
        read_image_scores(tmp_path / 'other.csv')
    (tmp_path / 'empty.csv').touch()
    with pytest.raises(ValueError, match='holds no scores'):
        read_image_scores(tmp_path / 'empty.csv')
    with pytest.raises(ValueError, match='0 images with a risk'):
        draw_image_risk(SCORES, np.full(5, np.nan), name='a run')
