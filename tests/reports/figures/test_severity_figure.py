"""Metrics by the severity of corruptions: the boxes and lines that are drawn."""

import numpy as np
import pytest

from mmcalib.metrics.metric_text import ECE
from mmcalib.reports.figures.severity import draw_severity

QUALITY = 'mIoU'


def metrics_by_severity(factor):
    eces = {0: [1.0], 3: [2.0, 3.0, 4.0, 31.0, np.nan], 5: [7.0, 5.0]}
    return {
        severity: [{ECE: factor * ece, QUALITY: 2 * factor * ece} for ece in values]
        for severity, values in eces.items()
    }


SHIFTED = {
    'CE': metrics_by_severity(1),
    'CE + temperature': metrics_by_severity(0.5),
    'LS': metrics_by_severity(0.8),
}


def test_severity_boxes_are_over_corruptions():
    figure = draw_severity(SHIFTED, [ECE, QUALITY])
    for axes, factor, heading in zip(figure.axes, (1, 2), ('ECE (%)', 'mIoU (%)'), strict=True):
        boxes = axes.patches
        first_boxes = boxes[::3]
        plain, calibrated, other = first_boxes
        assert [box.get_label() for box in first_boxes] == [*SHIFTED]
        assert plain.get_facecolor() == calibrated.get_facecolor() != other.get_facecolor()
        assert [bool(box.get_hatch()) for box in first_boxes] == [False, True, False]
        positions = [np.mean(box.get_path().vertices[:4, 0]) for box in boxes]
        assert [round(position) for position in positions] == [0, 3, 5] * 3
        assert positions[1] < positions[4] < positions[7]
        dots = [line.get_ydata()[0] for line in axes.lines if line.get_marker() == '.']
        assert dots[1::3] == pytest.approx([factor * 10, factor * 5, factor * 8])
        lines = [line for line in axes.lines if line.get_linestyle() == '-']
        ends = {float(y) for line in lines for y in line.get_ydata()}
        assert {factor * 2.0, factor * 31.0} <= ends and axes.get_ylabel() == heading
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ['clean', '3', '5']


def test_severity_lines_are_means_over_corruptions():
    left, right = draw_severity(SHIFTED, [ECE, QUALITY], figure='lines').axes
    for index, (name, metrics) in enumerate(SHIFTED.items()):
        for key, axes in ((ECE, left), (QUALITY, right)):
            line = axes.lines[index]
            expected = [np.nanmean([test[key] for test in tests]) for tests in metrics.values()]
            assert line.get_label() == name and list(line.get_xdata()) == [0, 3, 5]
            assert line.get_ydata() == pytest.approx(expected)
    assert len(left.lines) == len(right.lines) == len(SHIFTED)
    plain, calibrated, other = left.lines
    assert (plain.get_linestyle(), calibrated.get_linestyle()) == ('-', '--')
    assert plain.get_color() == calibrated.get_color() != other.get_color()
    assert left.get_ylim()[0] == 0 and left.get_ylim()[1] > 6
