"""Curves of sweeps: the values, bars and labels that are drawn."""

import numpy as np
import pytest
from drawings import sweep

from mmcalib.metrics.metric_text import ECE
from mmcalib.reports.figures.sweep import draw_sweep

QUALITY = 'mIoU'


def curves(axes):
    """Values and heights of each curve, by colour, line and the face of its markers."""
    lines = [bars.lines[0] for bars in axes.containers]
    return {
        (line.get_color(), line.get_linestyle(), line.get_markerfacecolor()): line.get_data()
        for line in lines
    }


def legend_names(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_sweep_curves_equal_values_of_both_splits():
    figure = draw_sweep({'LS': sweep(tested=(0.05, 0.0, 0.1)), 'MbLS': sweep((2, 4, 8), (4, 8))})
    for axes, heading, start in zip(figure.axes, ('ECE (%)', 'mIoU (%)'), (3, 60), strict=True):
        assert axes.get_ylabel() == heading and 'alpha' in axes.get_xlabel()
        expected = [(0, 0.05, 0.1), (0, 0.05, 0.1), (2, 4, 8), (4, 8)]
        actual = curves(axes)
        assert len(actual) == 4
        for ((_, line, face), (positions, heights)), values, shift in zip(
            actual.items(), expected, (0, 5, 0, 5), strict=True
        ):
            assert (line == '--') == (face == 'white') == (shift == 0)
            assert list(positions) == list(values)
            assert heights == pytest.approx([start + value + shift for value in values])
        assert axes.get_xlim()[0] <= 0 and axes.get_xlim()[1] >= 8
        assert axes.get_ylim()[1] > start + 8
        run_lines = [line for line in axes.lines if line.get_label() in ('LS', 'MbLS')]
        curve_colours = [colour for colour, _, _ in actual]
        assert [line.get_color() for line in run_lines] == curve_colours[::2]
    assert legend_names(figure) == [
        'LS', 'MbLS', 'validation', 'test, not used for selection', 'chosen on validation'
    ]  # fmt: skip


def test_sweep_single_tested_value_is_a_point_and_star_on_validation():
    axes, _ = draw_sweep({'LS': sweep()}).axes
    assert [line for _, line, _ in curves(axes)] == ['--', 'None']
    (star,) = [line for line in axes.lines if line.get_marker() == '*']
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (0.05, 3.05)


def test_sweep_bars_are_interval_or_deviation():
    content = sweep()
    first, second, third = content['rows']
    first['val'][0] |= {f'{ECE}_low': 1.0, f'{ECE}_high': 7.0}
    second['val'] = [{QUALITY: 60.0, ECE: ece} for ece in (2.0, 4.0)]
    third['val'].append(third['val'][0] | {ECE: float('nan')})
    validation = draw_sweep({'': content}).axes[0].containers[0]
    heights = validation.lines[0].get_ydata()
    assert heights[:2] == pytest.approx([3, 3]) and np.isnan(heights[2])
    ends = [[y for _, y in segment] for segment in validation.lines[2][0].get_segments()]
    assert ends[0] == [1.0, 7.0]
    assert ends[1] == pytest.approx([3 - 2**0.5, 3 + 2**0.5])


def test_sweep_legend_has_what_is_drawn():
    untested = sweep(tested=(9.0,))  # Then no value is chosen or tested.
    assert legend_names(draw_sweep({'LS': untested})) == ['LS', 'validation']
    on_test_data = draw_sweep({'LS': untested | dict(validates_on_test_data=True)})
    assert legend_names(on_test_data) == ['LS', 'validation (on test data)']
    two = {'a': untested, 'b': sweep(parameter='gamma', tested=(9.0,))}
    assert legend_names(draw_sweep(two))[:2] == ['a, over alpha', 'b, over gamma']


def test_sweep_values_with_words_are_categories():
    content = sweep(tested=(9.0,))
    for row, value in zip(content['rows'], ('mean', 0.5, 'sum'), strict=True):
        row['value'] = value
    ticks = draw_sweep({'LS': content}).axes[0].get_xticklabels()
    assert [text.get_text() for text in ticks] == ['mean', '0.5', 'sum']
