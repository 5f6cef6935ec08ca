"""Metrics on corrupted data by the severity of the corruptions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmcalib.errors import UserError
from mmcalib.metrics.metric_text import metric_heading
from mmcalib.options import check_choice
from mmcalib.visualization.panels import (
    PlottedRun,
    add_legend,
    panel_axes,
    plotted_runs,
    tidy_axes,
)
from mmcalib.visualization.style import HATCHES, LINES

BOXES_WIDTH = 0.8  # all boxes at one severity together; severities are 1 apart


def draw_severity(
    runs: Mapping[str, Mapping[int, Sequence[Mapping[str, float]]]],
    keys: Sequence[str],
    *,
    figure: str = 'boxes',
) -> Figure:
    """Draw metrics of tests on corrupted data by severity, with a panel for each metric.

    ``'boxes'`` have the quartiles and the median over corruptions, whiskers to the least and the
    largest value, and a dot at the mean; ``'lines'`` are the mean alone. A calibrated model has the
    colour of its loss, hatched or dashed, if it follows the one before its calibration.

    Source: Ovadia et al., "Can You Trust Your Model's Uncertainty?", NeurIPS 2019, Figure 2.

    Args:
        runs: Metrics of each corruption (and seed) by severity, by the names of the runs; severity
            0 is the clean data.
        keys: Metrics that all of them have; NaN is left out.
        figure: ``'boxes'`` or ``'lines'``.

    Returns:
        The figure; ``savefig`` writes it.

    Raises:
        ValueError: If there is nothing to draw, or the figure is another.
    """
    check_choice('figure', figure, ('boxes', 'lines'))
    severities = sorted({severity for metrics in runs.values() for severity in metrics})
    if not keys or not any(severities):
        raise UserError('there is no test on corrupted data to draw')
    if figure == 'boxes':
        drawing, axes_by_panel = panel_axes(
            len(keys), columns=1, panel_size=(7.4, 2.1), margin=(0.0, 0.6), share_x=True
        )
    else:
        drawing, axes_by_panel = panel_axes(
            len(keys), columns=len(keys), panel_size=(3.4, 3.3), margin=(0.4, 0.0), share_x=True
        )
    plotted = plotted_runs(runs)
    for (axes,), key in zip(axes_by_panel, keys, strict=True):
        for index, run in enumerate(plotted):
            values = _values_by_severity(run, key)
            if figure == 'boxes':
                _draw_boxes(axes, values, run, index, len(plotted))
            else:
                _draw_means(axes, values, run)
        heading = metric_heading(key)
        axes.set_ylabel(heading if figure == 'boxes' else f'{heading}, mean')
        axes.set_xticks(severities, [str(severity or 'clean') for severity in severities])
        tidy_axes(axes)
    # The panels of lines stand in one row, those of boxes below each other.
    if figure == 'boxes':
        drawing.axes[-1].set(xlabel='severity of the corruptions')
    else:
        for axes in drawing.axes:
            axes.set(xlabel='severity of the corruptions', ylim=(0, None))
    add_legend(drawing, most_columns=3)
    return drawing


def _values_by_severity(run: PlottedRun, key: str) -> dict[int, list[float]]:
    """Return the values of a metric over corruptions, for each severity that has any."""
    values_by_severity = {}
    for severity, tests in sorted(run.content.items()):
        values = [test[key] for test in tests if not math.isnan(test[key])]
        if values:
            values_by_severity[severity] = values
    return values_by_severity


def _draw_boxes(
    axes: Axes,
    values_by_severity: Mapping[int, Sequence[float]],
    run: PlottedRun,
    index: int,
    num_runs: int,
) -> None:
    """Draw a box over corruptions at each severity, beside those of the other runs."""
    width = BOXES_WIDTH / num_runs
    offset = (index + 0.5) * width - BOXES_WIDTH / 2
    boxplot = axes.boxplot(
        list(values_by_severity.values()),
        positions=[severity + offset for severity in values_by_severity],
        widths=0.85 * width,
        manage_ticks=False,
        whis=(0, 100),
        showmeans=True,
        patch_artist=True,
        medianprops=dict(color='black'),
        meanprops=dict(marker='.', markerfacecolor='black', markeredgecolor='black'),
        boxprops=dict(facecolor=run.look.colour, alpha=0.75, linewidth=0.7),
    )
    for box in boxplot['boxes']:
        box.set_hatch(HATCHES[LINES.index(run.look.line)])
    boxplot['boxes'][0].set_label(run.label)


def _draw_means(
    axes: Axes, values_by_severity: Mapping[int, Sequence[float]], run: PlottedRun
) -> None:
    """Draw the mean over corruptions by severity; the markers of dashed lines are hollow."""
    axes.plot(
        list(values_by_severity),
        [statistics.fmean(values) for values in values_by_severity.values()],
        color=run.look.colour,
        linestyle=run.look.line,
        marker=run.look.marker,
        markerfacecolor=None if run.look.line == '-' else 'white',
        markersize=5,
        label=run.label,
    )
