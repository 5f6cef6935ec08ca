import numpy as np
import pytest
import torch
from drawings import check_nothing_is_cut, table, words
from matplotlib.patches import StepPatch

from mmcalib.visualization import Reliability, draw_reliability, to_rgb


def test_a_panel_says_what_was_measured_in_units():
    errors = {'ECE': 12.345, 'AECE': 11.0}
    diagram = Reliability('mbls/digits', table(), figures=errors, note='15 bins')
    figure = draw_reliability([diagram])
    text = words(figure)
    for part in (
        'mbls/digits', 'ECE 12.35 %, AECE 11.00 %', 'n = 500, 15 bins', 'confidence (%)',
        'accuracy (%)', 'predictions (%)', 'over-confident by',
    ):  # fmt: skip
        assert part in text
    top, bottom = figure.axes
    assert top.get_xlim() == bottom.get_xlim() == top.get_ylim() == (0, 100)
    width, height = figure.get_size_inches()
    box = top.get_position()
    assert box.width * width == pytest.approx(box.height * height)  # so the diagonal has 45 degrees


def test_bars_and_gaps_are_those_of_the_table():
    rows = torch.tensor([[4.0, 0, 6], [1, 0, 6], [1.2, 0, 5.1]], dtype=torch.float64)
    figure = draw_reliability([Reliability('', rows)])
    top, bottom = figure.axes
    accuracy, over, under = (
        patch.get_data() for patch in top.patches if isinstance(patch, StepPatch)
    )
    np.testing.assert_allclose(accuracy.values, [25, 0, 100])
    np.testing.assert_allclose(over.values, [30, 0, 100])  # conf 30 over accuracy 25
    np.testing.assert_allclose(under.values, [25, 0, 85])
    (histogram,) = (patch for patch in bottom.patches if isinstance(patch, StepPatch))
    np.testing.assert_allclose(histogram.get_data().values, [40, 0, 60])


def test_bins_of_equal_count_have_a_histogram_of_their_own():
    diagram = Reliability('', table(5), equal_mass=True, histogram=table(20))
    top, bottom = draw_reliability([diagram]).axes
    assert len(bottom.patches[0].get_data().values) == 20
    count, correct, conf = table(5)
    line = next(line for line in top.lines if line.get_marker() == 'o')
    np.testing.assert_allclose(line.get_xdata(), 100 * conf / count)
    np.testing.assert_allclose(line.get_ydata(), 100 * correct / count)


@pytest.mark.parametrize('count', [1, 2, 5])
def test_side_by_side_and_overlaid(count):
    band = torch.tensor([[0.1], [0.9]], dtype=torch.float64).repeat(1, 10)
    diagrams = [Reliability(f'run {i}', table(seed=i), band=band) for i in range(count)]
    assert len(draw_reliability(diagrams).axes) == 2 * count
    figure = draw_reliability(diagrams, overlay=True, zoom=(80, 100))
    assert len(figure.axes) == 2 and len(figure.axes[0].child_axes) == 1
    assert figure.axes[0].child_axes[0].get_xlim() == (80, 100)
    names = words(figure)
    assert all(f'run {i}\n' in names for i in range(count))


def test_no_two_runs_of_many_look_alike():
    figure = draw_reliability([Reliability(str(i), table(seed=i)) for i in range(20)], overlay=True)
    top, bottom = figure.axes
    curves = [
        (each.get_color(), each.get_linestyle())
        for each in top.lines
        if len(each.get_xdata()) > 2 and each.get_linestyle() != 'None' and not each.get_alpha()
    ]
    outlines = [(each.get_edgecolor(), each.get_linestyle()) for each in bottom.patches]
    assert len(set(curves)) == len(set(outlines)) == 20


@pytest.mark.parametrize('count', [1, 2, 5])
def test_nothing_of_it_is_cut(count):
    band = torch.rand(2, 10)
    diagrams = [
        Reliability(f'run {i}', table(seed=i), figures={'ECE': 1.0}, band=band)
        for i in range(count)
    ]
    for options in ({}, {'overlay': True}):
        figure = draw_reliability(diagrams, **options)
        assert to_rgb(figure).shape[2] == 3
        check_nothing_is_cut(figure)


LONG = 'a_folder/deeplabv3plus_efflite0_people_animals_long/seed_2 with words, and ' * 3


@pytest.mark.parametrize('count', [1, 3])
def test_long_names_are_broken_into_lines(count):
    diagrams = [
        Reliability(f'{LONG} {i}', table(seed=i, n=60), figures={'ECE': 1.0}) for i in range(count)
    ]
    for options in ({}, {'overlay': True}):
        figure = draw_reliability(diagrams, **options)
        check_nothing_is_cut(figure)
        assert (
            words(figure).replace('\n', '').replace(' ', '').count(LONG.replace(' ', '')) == count
        )


def counts(*numbers):
    rows = torch.tensor(numbers, dtype=torch.float64)
    return torch.stack([rows, rows / 2, rows * torch.linspace(0.1, 0.9, len(rows))])


@pytest.mark.parametrize(('fewest', 'faded'), [(19, 1), (20, 0), (0, 0)])
def test_bins_of_few_predictions_are_faded_and_the_legend_says_so(fewest, faded):
    diagrams = [Reliability('run', counts(100, fewest, 50))]
    figure = draw_reliability(diagrams)
    whitened = [p for p in figure.axes[0].patches if p.get_facecolor() == (1, 1, 1, 0.7)]
    assert len(whitened) == faded
    if faded:
        assert whitened[0].get_x() == pytest.approx(100 / 3)
    overlaid = draw_reliability(diagrams, overlay=True)
    pale = [
        line for line in overlaid.axes[0].lines if line.get_alpha() and line.get_marker() == 'o'
    ]
    assert sum(len(line.get_xdata()) for line in pale) == faded
    for each in (figure, overlaid):
        assert ('faded: n < 20' in words(each)) == bool(faded)


def test_what_cannot_be_drawn_is_said():
    with pytest.raises(ValueError, match='no evaluation'):
        draw_reliability([])
    with pytest.raises(ValueError, match="'run' has no predictions"):
        draw_reliability([Reliability('run', torch.zeros(3, 5))])
    with pytest.raises(ValueError, match=r'interval in percent.*got \(90, 110\)'):
        draw_reliability([Reliability('run', table())], zoom=(90, 110))


def test_formats(tmp_path):
    for suffix in ('png', 'pdf', 'svg'):
        path = tmp_path / f'figure.{suffix}'
        draw_reliability([Reliability('run', table())]).savefig(path)
        assert path.stat().st_size > 1000


@pytest.mark.parametrize('under', [False, True])
def test_the_inset_keeps_off_the_curve(under):
    # One bin for each tenth, 20 points off the diagonal.
    conf = torch.arange(3, 9, dtype=torch.float64) / 10
    bins = torch.stack([torch.full((6,), 50.0), 50 * (conf + (0.2 if under else -0.2)), 50 * conf])
    figure = draw_reliability([Reliability('run', bins.double())], overlay=True, zoom=(50, 100))
    (inset,) = figure.axes[0].child_axes
    box = inset.get_position()
    points = figure.axes[0].transData.transform(100 * bins[[2, 1]].T / 50)
    assert not any(box.contains(*figure.transFigure.inverted().transform(p)) for p in points)


def test_the_legend_has_an_interval_only_if_there_is_one():
    for band, expected in ((None, False), (torch.full((2, 15), torch.nan), False),
                           (torch.rand(2, 15), True)):  # fmt: skip
        for overlay in (False, True):
            figure = draw_reliability([Reliability('run', table(), band=band)], overlay=overlay)
            names = [text.get_text() for text in figure.legends[0].get_texts()]
            # Of the accuracy: the bars themselves, and the errors in the title, are no intervals.
            assert ('95 % interval of accuracy' in names) == expected
