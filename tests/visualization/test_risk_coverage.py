import numpy as np
import pytest
import torch
from drawings import check_nothing_is_cut, table, words

from mmcalib.metrics import CalibrationStatistics
from mmcalib.metrics.ranking import aurc
from mmcalib.visualization import Evaluation, draw_risk_coverage, risk_coverage_of, to_rgb


def statistics(**metrics):
    cells = table(20)
    return CalibrationStatistics(metrics, 'image', 15, cells[:, cells[0] > 0])


def test_figures_are_those_that_were_printed_else_computed():
    found = risk_coverage_of(statistics(AURC=12.5), 'run')
    assert found.figures['AURC'] == 12.5
    computed = risk_coverage_of(statistics(), 'run')
    assert computed.figures['AURC'] == aurc(statistics().narrow_bins).item()
    text = words(draw_risk_coverage([found]))
    for part in ('run', 'AURC 12.50 %, AUGRC', 'n = 500, protocol image', 'coverage (%)',
                 'risk: errors among the accepted (%)', 'best order', 'by chance'):  # fmt: skip
        assert part in text
    empty = CalibrationStatistics({}, 'pooled', 15, torch.zeros(3, 0))
    with pytest.raises(ValueError, match="'run' has no predictions"):
        risk_coverage_of(empty, 'run')


def test_the_curve_is_that_of_the_cells():
    cells = torch.tensor([[4.0, 0, 4, 2], [1, 0, 3, 2], [1.2, 0, 3, 1.9]], dtype=torch.float64)
    (axes,) = draw_risk_coverage([Evaluation('', cells)]).axes
    curve, end, best, chance = axes.lines
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
    figure = draw_risk_coverage([risk_coverage_of(
        CalibrationStatistics({}, 'pooled', 15, cells), 'run')])  # fmt: skip
    assert to_rgb(figure).shape[2] == 3
    assert figure.axes[0].get_ylim()[1] == (100 if not correct else pytest.approx(0.0115))


@pytest.mark.parametrize('count', [1, 2, 5])
def test_nothing_of_it_is_cut(count):
    runs = [Evaluation(f'run {i}', table(seed=i), {'AURC': 1.0}) for i in range(count)]
    for overlay in (False, True):
        figure = draw_risk_coverage(runs, overlay=overlay)
        assert len(figure.axes) == (1 if overlay else count)
        check_nothing_is_cut(figure)
        names = words(figure)
        assert all(f'run {i}\n' in names for i in range(count))


def test_what_cannot_be_drawn_is_said():
    with pytest.raises(ValueError, match='no evaluation'):
        draw_risk_coverage([])
    with pytest.raises(ValueError, match="'run' has no predictions"):
        draw_risk_coverage([Evaluation('run', torch.zeros(3, 5))])
