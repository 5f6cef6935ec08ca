"""Layout of all figures of several runs: their panels, titles, grids and legends."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmcalib.errors import UserError
from mmcalib.metrics.compare import Comparison
from mmcalib.metrics.measured import Measured
from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.visualization.style import GREY, Look, as_label, run_looks

PANELS_PER_ROW = 4
# In inches: a panel with its labels, its square axes, the titles of a row, and the first labels.
PANEL_WIDTH = 3.4
AXES_SIDE = 2.8
TITLE_HEIGHT = 0.85
LABEL_WIDTH = 0.9
LETTER_WIDTH = 0.063  # inches of a letter of size 8, on average
MOST_LEGEND_COLUMNS = 4


@dataclass(frozen=True)
class PlottedRun:
    """Run in a figure.

    Attributes:
        label: Its name, as matplotlib shows it.
        content: Data that are drawn, such as its statistics.
        look: Its look in this figure.
    """

    label: str
    content: Any
    look: Look


@dataclass(frozen=True)
class Panel:
    """Part of a figure.

    Attributes:
        axes: Its main axes, then those below.
        runs: Runs that it shows.
    """

    axes: list[Axes]
    runs: list[PlottedRun]


def plotted_runs(runs: Mapping[str, Any]) -> list[PlottedRun]:
    """Return the runs of a figure with their labels and looks."""
    return [
        PlottedRun(as_label(name), content, look)
        for (name, content), look in zip(runs.items(), run_looks(list(runs)), strict=True)
    ]


def check_no_arrays(*arrays: Any) -> None:
    """Raise a TypeError if arrays are given beside a measurement, which has them already."""
    if any(array is not None for array in arrays):
        raise TypeError('a measurement is drawn by itself: leave out labels and other arrays')


def measured_statistics(
    measured: Measured | Mapping[str, Measured] | float, title: str
) -> dict[str, CalibrationStatistics]:
    """Return the tables of measurements by the titles of their panels.

    Args:
        measured: A measurement, which has a panel for each of several labels; or several
            measurements by name.
        title: Title of a single measurement.

    Raises:
        TypeError: For other things than measurements.
        ValueError: If no prediction is valid.
    """
    are_several = isinstance(measured, Mapping) and not isinstance(measured, Measured)
    by_title = measured if are_several else {title: measured}
    statistics = {}
    for name, entry in by_title.items():
        # A Comparison is of differences, whose two models it does not have.
        if not isinstance(entry, Measured) or isinstance(entry, Comparison):
            raise TypeError(
                f'a diagram is drawn of what measure, evaluate or compute returned in this process '
                f"for several metrics, as ['ECE', 'NLL']; got {type(entry).__name__}"
            )
        if entry.statistics is not None:
            statistics[name] = entry.statistics
    # The panels of a label, such as before and after, stand side by side.
    for label in range(max((len(entry.by_label) for entry in by_title.values()), default=0)):
        for name, entry in by_title.items():
            if label < len(entry.by_label):
                title = f'{name} label {label}'.strip()
                statistics[title] = entry.by_label[label].statistics
    drawable = {}
    for name, entry in statistics.items():
        if entry.num_predictions:
            drawable[name] = entry
    if not drawable:
        raise UserError('there are no predictions to draw; are all labels ignore_index?')
    return drawable


def panels(
    runs: Mapping[str, Any],
    *,
    below: Sequence[float] = (),
    overlay: bool = False,
    ax: Axes | None = None,
) -> tuple[Figure, list[Panel]]:
    """Return a figure with a square panel for each run, four in a row, or one panel for all runs.

    Args:
        runs: Data that are drawn, by the names of the runs.
        below: Heights of further axes below the square ones, as shares of these.
        overlay: Whether one panel shows all runs.
        ax: Axes that the one panel has, without further ones below; None for a new figure.

    Raises:
        UserError: If there are axes for one panel, and there are several.
    """
    plotted = plotted_runs(runs)
    runs_by_panel = [plotted] if overlay else [[run] for run in plotted]
    if ax is not None:
        if len(runs_by_panel) > 1:
            raise UserError(
                f'ax has place for one panel, and {len(runs_by_panel)} are drawn: give one '
                'measurement with each ax, or leave ax out'
            )
        return ax.figure, [Panel([ax], runs_by_panel[0])]
    figure, axes_by_panel = panel_axes(
        len(runs_by_panel),
        columns=min(len(runs_by_panel), PANELS_PER_ROW),
        panel_size=(PANEL_WIDTH, AXES_SIDE * (1 + sum(below)) + TITLE_HEIGHT),
        margin=(LABEL_WIDTH, 0.0),
        below=below,
    )
    for axes_of_panel in axes_by_panel:
        for axes, height in zip(axes_of_panel, (1, *below), strict=True):
            axes.set_box_aspect(height)
    return figure, [
        Panel(axes, panel_runs)
        for axes, panel_runs in zip(axes_by_panel, runs_by_panel, strict=True)
    ]


def panel_axes(
    num_panels: int,
    *,
    columns: int,
    panel_size: tuple[float, float],
    margin: tuple[float, float] = (0.0, 0.0),
    below: Sequence[float] = (),
    share_x: bool = False,
) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure of constrained layout, and the axes of each panel, row by row.

    Every figure of several runs is laid out here, with a panel for each run or each metric.

    Args:
        num_panels: Number of panels.
        columns: Number of panels in a row.
        panel_size: Width and height of a panel, in inches.
        margin: Width and height that the figure has beside its panels, in inches.
        below: Heights of further axes below the main ones, as shares of these.
        share_x: Whether all axes have the same x axis.
    """
    rows = -(-num_panels // columns)
    heights = (1, *below)
    panel_width, panel_height = panel_size
    figure = Figure(
        figsize=(panel_width * columns + margin[0], panel_height * rows + margin[1]),
        layout='constrained',
    )
    grid = figure.subplots(
        rows * len(heights), columns, squeeze=False, height_ratios=heights * rows, sharex=share_x
    )
    axes_by_panel = []
    for row in range(rows):
        row_axes = grid[row * len(heights) : (row + 1) * len(heights)]
        axes_by_panel += [list(row_axes[:, column]) for column in range(columns)]
    for unused_axes in axes_by_panel[num_panels:]:
        for axes in unused_axes:
            axes.remove()
    return figure, axes_by_panel[:num_panels]


def add_legend(figure: Figure, most_columns: int = MOST_LEGEND_COLUMNS) -> None:
    """Add a legend of all labels below a figure, which grows by the lines that it has."""
    handles = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(wrap_text(label, figure.get_figwidth() - 0.6), handle)
    for columns in range(min(most_columns, len(handles)), 0, -1):
        legend = figure.legend(
            handles.values(),
            handles,
            ncols=columns,
            loc='outside lower center',
            frameon=False,
            fontsize=8,
            handlelength=3.0,
        )
        box = legend.get_window_extent()
        if columns == 1 or box.width < figure.bbox.width:
            break
        legend.remove()
    figure.set_figheight(figure.get_figheight() + box.height / figure.dpi)
    figure.draw_without_rendering()  # Square panels take the layout a second time.


def wrap_text(text: str, inches: float) -> str:
    """Break the lines of a text of size 8 that are wider: paths behind their slashes."""
    letters = max(int(inches / LETTER_WIDTH), 1)
    # textwrap breaks at spaces alone: each slash gets one, marked by a character that no text has.
    marked = re.sub(r'(?<=[/_])(?=\w)', '\0 ', text)
    lines = [textwrap.fill(line, letters) for line in marked.split('\n')]
    return re.sub('\0 ?', '', '\n'.join(lines))


def set_panel_title(axes: Axes, text: str) -> None:
    """Give a panel a title, in lines of its width."""
    axes.set_title(wrap_text(text, AXES_SIDE), fontsize=8)


def statistics_title(
    name: str,
    statistics: CalibrationStatistics,
    metrics: Mapping[str, float],
    *,
    note: str = '',
    separator: str = '\n',
) -> str:
    """Return the title of a run: its name, metrics in percent, and the number of predictions.

    Args:
        name: Name of the run; an empty one takes no line.
        statistics: Statistics of the evaluation.
        metrics: Metrics to show, in percent.
        note: Text behind the number of predictions.
        separator: Text between the metrics and the number of predictions.
    """
    counted = [f'n = {statistics.num_predictions:,}']
    if note:
        counted.append(note)
    if statistics.protocol != 'pooled':
        counted.append(f'protocol {statistics.protocol}')
    parts = [', '.join(counted)]
    if metrics:
        parts.insert(0, ', '.join(f'{key} {value:.2f} %' for key, value in metrics.items()))
    text = separator.join(parts)
    return f'{name}\n{text}' if name else text


def check_drawable(runs: Mapping[str, CalibrationStatistics]) -> None:
    """Raise a ValueError if there is no run, or one has no predictions."""
    if not runs:
        raise UserError('there is no run to draw')
    for name, statistics in runs.items():
        if not statistics.num_predictions:
            raise UserError(
                f'{name!r} has no predictions to draw'
                if name
                else 'there are no predictions to draw; are all labels ignore_index?'
            )


def tidy_axes(axes: Axes) -> None:
    """Give axes a faint grid, and no frame above and to the right."""
    axes.grid(True, axis='y', linewidth=0.4, alpha=0.5)
    axes.set_axisbelow(True)
    axes.spines[['top', 'right']].set_visible(False)
    axes.tick_params(labelsize=8, color=GREY)
