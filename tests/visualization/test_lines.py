"""Curves of runs by distance, severity and a parameter of the loss: the values and looks drawn."""

import numpy as np
import pytest
import torch
from drawings import statistics, sweep, table

from mmcalib.metrics.names import ECE
from mmcalib.visualization import draw_boundary_curves, draw_severity, draw_sweep

QUALITY = 'mIoU'


def distances(seed=0, empty=(6,)):
    tables = [table(15, n=50 + 100 * i, seed=seed + i) * (i not in empty) for i in range(8)]
    return torch.stack(tables, dim=1)


def test_curves_by_distance_are_the_figures_of_ranges_that_have_pixels():
    bins = {name: distances(seed) for name, seed in (('one', 0), ('two', 50))}
    runs = {name: statistics(protocol='paper', distance_bins=b) for name, b in bins.items()}
    figure = draw_boundary_curves(runs)
    left, right, *below = figure.axes
    kept = [i for i in range(8) if i != 6]
    for number, (name, found) in enumerate(bins.items()):
        ece, accuracy, conf = left.lines[number], *right.lines[2 * number : 2 * number + 2]
        assert ece.get_label() == accuracy.get_label() == f'{name}, protocol paper'
        assert ece.get_color() == accuracy.get_color() == conf.get_color()
        assert (accuracy.get_linestyle(), conf.get_linestyle()) == ('-', '--')
        for place, i in enumerate(kept):
            n, correct, trust = found[:, i].sum(dim=-1).tolist()
            gaps = (found[1, i] - found[2, i]).abs().sum().item()
            assert ece.get_ydata()[place] == pytest.approx(100 * gaps / n)
            assert accuracy.get_ydata()[place] == pytest.approx(100 * correct / n)
            assert conf.get_ydata()[place] == pytest.approx(100 * trust / n)
            share = 100 * n / found[0].sum().item()
            assert below[0].patches[place].get_height() == pytest.approx(share)
    assert left.lines[0].get_color() != left.lines[1].get_color()
    names = [tick.get_text() for tick in below[0].get_xticklabels()]
    assert names == ['1', '2', '3–4', '5–8', '9–16', '17–32', 'over 64']


def by_severity(factor):
    eces = {0: [1.0], 3: [2.0, 3.0, 4.0, 31.0, np.nan], 5: [7.0, 5.0]}
    return {s: [{ECE: factor * e, QUALITY: 2 * factor * e} for e in eces[s]] for s in eces}


SHIFTED = {'CE': by_severity(1), 'CE + temperature': by_severity(0.5), 'LS': by_severity(0.8)}


def test_boxes_by_severity_are_over_the_corruptions_of_each_run():
    figure = draw_severity(SHIFTED, [ECE, QUALITY])
    for axes, factor, unit in zip(figure.axes, (1, 2), ('ECE (%)', 'mIoU (%)'), strict=True):
        boxes, (first, warm, other) = axes.patches, axes.patches[::3]
        assert [box.get_label() for box in boxes[::3]] == [*SHIFTED]
        assert first.get_facecolor() == warm.get_facecolor() != other.get_facecolor()
        assert [bool(box.get_hatch()) for box in boxes[::3]] == [False, True, False]
        places = [np.mean(box.get_path().vertices[:4, 0]) for box in boxes]
        assert [round(place) for place in places] == [0, 3, 5] * 3
        assert places[1] < places[4] < places[7]
        dots = [line.get_ydata()[0] for line in axes.lines if line.get_marker() == '.']
        assert dots[1::3] == pytest.approx([factor * 10, factor * 5, factor * 8])
        lines = [line for line in axes.lines if line.get_linestyle() == '-']
        ends = {float(y) for line in lines for y in line.get_ydata()}
        assert {factor * 2.0, factor * 31.0} <= ends and axes.get_ylabel() == unit
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ['clean', '3', '5']


def test_lines_by_severity_are_means_over_corruptions():
    left, right = draw_severity(SHIFTED, [ECE, QUALITY], figure='lines').axes
    for (name, found), *lines in zip(SHIFTED.items(), left.lines, right.lines, strict=True):
        for key, line in zip((ECE, QUALITY), lines, strict=True):
            means = [np.nanmean([test[key] for test in found[s]]) for s in found]
            assert line.get_label() == name and list(line.get_xdata()) == [0, 3, 5]
            assert line.get_ydata() == pytest.approx(means)
    plain, warm, other = left.lines
    assert (plain.get_linestyle(), warm.get_linestyle()) == ('-', '--')
    assert plain.get_color() == warm.get_color() != other.get_color()
    assert left.get_ylim()[0] == 0 and left.get_ylim()[1] > 6


def curves(axes):
    """Values and heights of each curve, by colour, line and the face of its markers."""
    drawn = [bars.lines[0] for bars in axes.containers]
    return {
        (line.get_color(), line.get_linestyle(), line.get_markerfacecolor()): line.get_data()
        for line in drawn
    }


def names(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_curves_of_sweeps_are_their_values_on_both_splits():
    figure = draw_sweep({'LS': sweep(tested=(0.05, 0.0, 0.1)), 'MbLS': sweep((2, 4, 8), (4, 8))})
    for axes, unit, start in zip(figure.axes, ('ECE (%)', 'mIoU (%)'), (3, 60), strict=True):
        assert axes.get_ylabel() == unit and 'alpha' in axes.get_xlabel()
        expected = [(0, 0.05, 0.1), (0, 0.05, 0.1), (2, 4, 8), (4, 8)]
        drawn = curves(axes)
        assert len(drawn) == 4
        for (look, (places, heights)), values, shift in zip(
            drawn.items(), expected, (0, 5, 0, 5), strict=True
        ):
            assert (look[1] == '--') == (look[2] == 'white') == (shift == 0)
            assert list(places) == list(values)
            assert heights == pytest.approx([start + v + shift for v in values])
        assert axes.get_xlim()[0] <= 0 and axes.get_xlim()[1] >= 8
        assert axes.get_ylim()[1] > start + 8
        named = [line.get_color() for line in axes.lines if line.get_label() in ('LS', 'MbLS')]
        assert named == [look[0] for look in drawn][::2]
    assert names(figure) == [
        'LS', 'MbLS', 'validation', 'test, not used for selection', 'chosen on validation'
    ]  # fmt: skip
    # One tested value is a point, and the star is on the chosen validation value.
    left, _ = draw_sweep({'LS': sweep()}).axes
    assert [look[1] for look in curves(left)] == ['--', 'None']
    (star,) = [line for line in left.lines if line.get_marker() == '*']
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (0.05, 3.05)


def test_bars_are_the_interval_of_one_run_or_the_deviation_of_several():
    drawn = sweep()
    first, second, third = drawn['rows']
    first['val'][0] |= {f'{ECE}_low': 1.0, f'{ECE}_high': 7.0}
    second['val'] = [{QUALITY: 60.0, ECE: ece} for ece in (2.0, 4.0)]
    third['val'].append(third['val'][0] | {ECE: float('nan')})
    validation = draw_sweep({'': drawn}).axes[0].containers[0]
    heights = validation.lines[0].get_ydata()
    assert heights[:2] == pytest.approx([3, 3]) and np.isnan(heights[2])
    ends = [[y for _, y in segment] for segment in validation.lines[2][0].get_segments()]
    assert ends[0] == [1.0, 7.0]
    assert ends[1] == pytest.approx([3 - 2**0.5, 3 + 2**0.5])


def test_the_legend_of_a_sweep_has_what_is_drawn():
    untested = sweep(tested=(9.0,))  # nothing chosen, nothing tested
    assert names(draw_sweep({'LS': untested})) == ['LS', 'validation']
    on_test = draw_sweep({'LS': untested | dict(validates_on_test_data=True)})
    assert names(on_test) == ['LS', 'validation (on test data)']
    two = {'a': untested, 'b': sweep(parameter='gamma', tested=(9.0,))}
    assert names(draw_sweep(two))[:2] == ['a, over alpha', 'b, over gamma']
    of_words = sweep(tested=(9.0,))
    for row, word in zip(of_words['rows'], ('mean', 0.5, 'sum'), strict=True):
        row['value'] = word
    ticks = draw_sweep({'LS': of_words}).axes[0].get_xticklabels()
    assert [text.get_text() for text in ticks] == ['mean', '0.5', 'sum']
