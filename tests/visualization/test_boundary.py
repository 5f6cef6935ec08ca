import pytest
import torch
from drawings import check_nothing_is_cut, statistics, table, words

from mmcalib.visualization import draw_boundary_curves, to_rgb


def distances(seed=0, empty=(6,)):
    tables = [table(15, n=50 + 100 * i, seed=seed + i) * (i not in empty) for i in range(8)]
    return torch.stack(tables, dim=1)


def test_lines_are_the_figures_of_each_range_that_has_pixels():
    bins = distances()
    runs = {'run': statistics(distance_bins=bins)}
    left, right, *shares = draw_boundary_curves(runs).axes
    kept = [i for i in range(8) if i != 6]
    for place, i in enumerate(kept):
        count, correct, conf = bins[:, i].sum(dim=-1).tolist()
        gaps = (bins[1, i] - bins[2, i]).abs().sum().item()
        assert left.lines[0].get_ydata()[place] == pytest.approx(100 * gaps / count)
        assert right.lines[0].get_ydata()[place] == pytest.approx(100 * correct / count)
        assert right.lines[1].get_ydata()[place] == pytest.approx(100 * conf / count)
        share = 100 * count / bins[0].sum().item()
        assert shares[0].patches[place].get_height() == pytest.approx(share)
    names = [tick.get_text() for tick in shares[0].get_xticklabels()]
    assert names == ['1', '2', '3–4', '5–8', '9–16', '17–32', 'over 64']


@pytest.mark.parametrize('names', [['run'], ['a', 'b'], [f'{i}, {"long " * 9}' for i in range(8)]])
def test_nothing_of_it_is_cut(names):
    runs = {
        name: statistics(protocol='paper', distance_bins=distances(i))
        for i, name in enumerate(names)
    }
    figure = draw_boundary_curves(runs)
    assert to_rgb(figure).std() > 10
    check_nothing_is_cut(figure)
    assert f'{names[0]}, protocol paper' in words(figure)


def test_what_cannot_be_drawn_is_said():
    with pytest.raises(ValueError, match='no run'):
        draw_boundary_curves({})
    with pytest.raises(ValueError, match=r"'run' has no distances .*per_distance=True"):
        draw_boundary_curves({'run': statistics()})
