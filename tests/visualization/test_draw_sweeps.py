import pytest

from mmcalib.visualization.sweep import draw_sweeps


def sweep(loss='LS', parameter='alpha', values=(0.0, 0.05, 0.1), tested=(0.05,), quality='mIoU'):
    def metrics(value):
        return [{quality: 60 + value, 'calibration/ECE': 3 + value}]

    rows = [
        dict(
            value=value,
            val=metrics(value),
            test=metrics(value) if value in tested else [],
            chosen=value == tested[0],
        )
        for value in values
    ]
    return dict(experiment='ls/x', loss=loss, parameter=parameter, rows=rows)


def lines(axes):
    """The curves that have a line, by style; markers alone have none."""
    drawn = [line for line in axes.lines if len(line.get_xdata())]
    return [line.get_linestyle() for line in drawn if line.get_linestyle() in ('-', '--')]


def test_axes_have_units_and_curves_are_told_apart():
    figure = draw_sweeps([sweep(tested=(0.05, 0.0, 0.1)), sweep('MbLS m=0', tested=(0.05, 0.1))])
    left, right = figure.axes
    assert (left.get_ylabel(), right.get_ylabel()) == ('ECE (%)', 'mIoU (%)')
    assert 'alpha' in left.get_xlabel()
    assert sorted(lines(left)) == ['-', '-', '--', '--']
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[:2] == ['LS', 'MbLS m=0'] and 'test, not used for selection' in names


def test_whole_numbers_are_values_too():
    draw_sweeps([sweep(values=(2, 4, 8), tested=(4,))])


def test_a_single_tested_value_is_a_point():
    left, _ = draw_sweeps([sweep()]).axes
    assert lines(left) == ['--']


def test_a_value_whose_metric_is_nan_in_one_run_is_not_drawn():
    drawn = sweep()
    failed = drawn['rows'][0]['val']
    failed.append(failed[0] | {'calibration/ECE': float('nan')})
    heights = draw_sweeps([drawn]).axes[0].containers[0].lines[0].get_ydata()
    assert [height == height for height in heights] == [False, True, True]


def test_bars_are_the_interval_of_one_run_or_the_deviation_of_several():
    drawn = sweep()
    first, second, _ = drawn['rows']
    first['val'][0] |= {'calibration/ECE_low': 1.0, 'calibration/ECE_high': 7.0}
    second['val'] = [{'mIoU': 60.0, 'calibration/ECE': ece} for ece in (2.0, 4.0)]
    (bars,) = draw_sweeps([drawn]).axes[0].containers[0].lines[2]
    ends = [[y for _, y in segment] for segment in bars.get_segments()]
    assert ends[0] == [1.0, 7.0]
    assert ends[1] == pytest.approx([3 - 2**0.5, 3 + 2**0.5])
    assert ends[2][0] == ends[2][1]


def test_the_star_is_on_the_validation_value_that_was_chosen_by():
    drawn = sweep()
    drawn['rows'][1]['test'][0]['calibration/ECE'] = 9.0
    left, _ = draw_sweeps([drawn]).axes
    (star,) = [line for line in left.lines if line.get_marker() == '*']
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (0.05, 3.05)


def test_the_legend_has_what_is_drawn():
    def legend(**options):
        figure = draw_sweeps([sweep(tested=(9.0,)) | options])  # nothing chosen, nothing tested
        return [text.get_text() for text in figure.legends[0].get_texts()]

    assert legend() == ['LS', 'validation']
    assert legend(validates_on_test_data=True) == ['LS', 'validation (on test data)']


def test_words_take_places_on_the_axis():
    rows = [
        dict(value=word, val=[{'mIoU': 60.0, 'calibration/ECE': 3.0}], test=[], chosen=False)
        for word in ('mean', 'sum')
    ]
    words = dict(experiment='mbls/x', loss='MbLS', parameter='class_reduction', rows=rows)
    figure = draw_sweeps([words])
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ['mean', 'sum']


def test_figures_are_written(tmp_path):
    for suffix in ('png', 'pdf'):
        path = tmp_path / f'figure.{suffix}'
        draw_sweeps([sweep(quality='accuracy/top1')]).savefig(path)
        assert path.stat().st_size > 1000


def test_what_cannot_be_drawn_is_said():
    with pytest.raises(ValueError, match='no sweep'):
        draw_sweeps([])
    with pytest.raises(ValueError, match='accuracy/top1, mIoU in common'):
        draw_sweeps([sweep(), sweep(quality='accuracy/top1')])
