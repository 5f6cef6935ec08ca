"""Reliability diagrams: how often predictions are right against how sure they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from torch import Tensor

from mmcalib.visualization.figure_style import COLOURS, GREY, MARKERS, by_line, percent

PER_ROW = 4
ACCURACY = '#A6CFE8'
OVER = dict(facecolor='#F3B48A', edgecolor='#B34700', hatch='////')
UNDER = dict(facecolor='#8FD6BE', edgecolor='#00664A', hatch='....')
# Above the diagonal, where over-confident networks leave room, and below it.
INSETS = (0.11, 0.58, 0.36, 0.36), (0.58, 0.11, 0.36, 0.36)
# Inches.
PANEL = 2.9
HISTOGRAM = 0.95
LEFT = 0.85
GAP = 0.45
HEADING = 0.65
SPACE = 0.14
FOOT = 0.5


@dataclass(frozen=True)
class Reliability:
    """What a diagram shows of one evaluation.

    Attributes:
        name: Of the run or its loss.
        table: ``(3, B)`` bins, ascending: count, correct, sum of confidences.
        equal_mass: Whether the bins hold equally many predictions; else they are equally wide.
        histogram: ``(3, H)`` bins of equal width for the histogram; those of `table` if None.
        errors: Calibration errors by name, in percent, for the title.
        band: ``(2, B)`` bounds of each bin's accuracy, as shares; NaN where there is none.
        note: Ends the title, such as the protocol.
    """

    name: str
    table: Tensor
    equal_mass: bool = False
    histogram: Tensor | None = None
    errors: Mapping[str, float] = field(default_factory=dict)
    band: Tensor | None = None
    note: str = ''


def draw_reliability(
    diagrams: Sequence[Reliability],
    *,
    overlay: bool = False,
    zoom: tuple[float, float] | None = None,
) -> Figure:
    r"""Draw accuracy against confidence for one evaluation, or several.

    A bin is drawn at its mean confidence :math:`\mathrm{conf}_b` with its accuracy
    :math:`\mathrm{acc}_b`; the hatched gap between the two, weighted by the bin's share of the
    predictions in the histogram below, is what an expected calibration error sums up. Both axes
    are in percent.

    Source: the paper's figures of reliability diagrams, which have 25 bins and a zoom.

    Args:
        diagrams: One panel each, four in a row.
        overlay: Draw all as curves in one panel instead.
        zoom: The part of both axes, in percent, to enlarge in an inset.

    Returns:
        The figure; ``savefig`` writes it.

    Raises:
        ValueError: If there is nothing to draw, or the zoom is no interval within 0 to 100.
    """
    if not diagrams:
        raise ValueError('there is no evaluation to draw a reliability diagram of')
    for diagram in diagrams:
        if diagram.table[0].sum() == 0:
            raise ValueError(f'{diagram.name!r} has no predictions to draw')
    if zoom is not None and not 0 <= zoom[0] < zoom[1] <= 100:
        raise ValueError(f'zoom must be an interval in percent, such as (80, 100); got {zoom}')

    panels = [diagrams] if overlay else [[diagram] for diagram in diagrams]
    draw = _draw_curves if overlay else _draw_bars
    handles = _curve_handles(diagrams) if overlay else _bar_handles(diagrams)
    columns = min(len(panels), PER_ROW)
    rows = -(-len(panels) // columns)
    per_line = 1 if overlay else min(len(handles), 2 * columns)
    heading = 0.15 if overlay else HEADING
    size = PANEL + 0.9 if overlay else PANEL  # room for the numbers in the legend
    step = size + GAP, heading + size + SPACE + HISTOGRAM + FOOT
    lines = -(-len(handles) // per_line) + (len(diagrams) if overlay else 0)
    bottom = 0.175 * lines + 0.15
    width, height = LEFT + columns * step[0] - GAP + 0.2, rows * step[1] + bottom
    figure = Figure(figsize=(width, height))

    def add(x: float, y: float, high: float) -> Axes:
        """Add axes as wide as a panel, given inches from the left and the top."""
        return figure.add_axes(
            (x / width, 1 - (y + high) / height, size / width, high / height), xlim=(0, 100)
        )

    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        x, y = LEFT + column * step[0], row * step[1] + heading
        top, below = add(x, y, size), add(x, y + size + SPACE, HISTOGRAM)
        draw(top, panel)
        _histogram(below, panel)
        if zoom is not None:
            inset = top.inset_axes(INSETS[_is_underconfident(panel)])
            draw(inset, panel)
            inset.set(xlim=zoom, ylim=zoom, xticks=zoom, yticks=zoom)
            inset.tick_params(labelsize=7, pad=1.5, length=2)
            for connector in top.indicate_inset_zoom(inset, edgecolor=GREY).connectors:
                connector.set_visible(False)
        top.tick_params(labelbottom=False)
        if not overlay:
            top.set_title(_title(panel[0]), fontsize=9, linespacing=1.4)
        if column == 0:
            top.set_ylabel('accuracy (%)')
            below.set_ylabel('share of\npredictions (%)')
        below.set_xlabel('confidence (%)')
    figure.legend(
        handles=by_line(handles, per_line),
        loc='lower left' if columns < 3 else 'lower center',
        bbox_to_anchor=((LEFT - 0.1) / width if columns < 3 else 0.5, 0.05 / height),
        borderaxespad=0,
        ncols=per_line,
        frameon=False,
        fontsize=8,
    )
    return figure


def draw_small(axes: Axes, table: Tensor) -> None:
    """Draw the diagram of bins of equal width into axes of the size of a thumbnail."""
    _draw_bars(axes, [Reliability('', table)])
    axes.tick_params(labelsize=7, pad=1.5, length=2)
    axes.set(xticks=(0, 50, 100), yticks=(0, 50, 100))


def _frame(axes: Axes) -> None:
    axes.plot((0, 100), (0, 100), color='black', linewidth=1, linestyle='--', zorder=3)
    axes.set(xlim=(0, 100), ylim=(0, 100))


def _draw_bars(axes: Axes, panel: Sequence[Reliability]) -> None:
    (diagram,) = panel
    filled, conf, accuracy = _points(diagram.table)
    if diagram.equal_mass:
        axes.vlines(conf, conf, accuracy, color=OVER['edgecolor'], linewidth=1.2)
        axes.plot(conf, accuracy, color=COLOURS[0], marker='o', markersize=4, linewidth=1)
        middle = conf
    else:
        size = 100 / diagram.table.shape[1]
        middle = (filled + 0.5) * size
        # One outline for all bars takes a fraction of the time of a patch for each.
        edges = np.linspace(0, 100, diagram.table.shape[1] + 1)
        heights = np.zeros((2, len(edges) - 1))
        heights[:, filled] = accuracy, conf
        axes.stairs(heights[0], edges, fill=True, color=ACCURACY, linewidth=0)
        for style, chosen in (
            (OVER, heights[1] > heights[0]),
            (UNDER, heights[1] < heights[0]),
        ):
            low, high = heights[0], np.where(chosen, heights[1], heights[0])
            axes.stairs(high, edges, baseline=low, fill=True, linewidth=0, **style)
        axes.vlines(edges[1:-1], 0, heights.max(axis=0)[:-1], color='white', linewidth=0.6)
        axes.hlines(accuracy, middle - size / 2, middle + size / 2, color=COLOURS[0], linewidth=1.8)
    if diagram.band is not None:
        low, high = 100 * diagram.band.numpy()[:, filled]
        axes.vlines(middle, low, high, color='black', linewidth=1, zorder=4)
    _frame(axes)


def _draw_curves(axes: Axes, panel: Sequence[Reliability]) -> None:
    for index, diagram in enumerate(panel):
        filled, conf, accuracy = _points(diagram.table)
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(
            conf, accuracy, color=colour, marker=MARKERS[index % len(MARKERS)], markersize=4.5,
            markeredgecolor='white', markeredgewidth=0.5, linewidth=1.4, zorder=5,
        )  # fmt: skip
        if diagram.band is not None:
            low, high = 100 * diagram.band.numpy()[:, filled]
            axes.fill_between(conf, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.grid(True, linewidth=0.4, alpha=0.5)
    _frame(axes)


def _histogram(axes: Axes, panel: Sequence[Reliability]) -> None:
    for index, diagram in enumerate(panel):
        table = diagram.table if diagram.histogram is None else diagram.histogram
        count, correct, conf = table.numpy()
        share = 100 * count / count.sum()
        edges = np.linspace(0, 100, len(count) + 1)
        if len(panel) > 1:
            axes.stairs(share, edges, color=COLOURS[index % len(COLOURS)], linewidth=1.4)
            continue
        axes.stairs(share, edges, color='#BBBBBB', fill=True)
        for value, style in ((correct.sum(), '-'), (conf.sum(), ':')):
            axes.axvline(100 * value / count.sum(), color='black', linestyle=style, linewidth=1.3)
    axes.set_ylim(bottom=0)
    axes.spines[['top', 'right']].set_visible(False)


def _is_underconfident(panel: Sequence[Reliability]) -> bool:
    """Return whether most of what is drawn lies above the diagonal."""
    gaps = [accuracy - conf for _, conf, accuracy in (_points(each.table) for each in panel)]
    return bool(np.concatenate(gaps).sum() > 0)


def _points(table: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the indices of the filled bins, and their confidence and accuracy in percent."""
    count, correct, conf = table.numpy()
    filled = np.flatnonzero(count > 0)
    return filled, 100 * conf[filled] / count[filled], 100 * correct[filled] / count[filled]


def _numbers(diagram: Reliability) -> str:
    parts = [f'{name} {percent(value)}' for name, value in diagram.errors.items()]
    return ', '.join(parts)


def _title(diagram: Reliability) -> str:
    count = f'n = {round(float(diagram.table[0].sum())):,}'
    last = ', '.join(part for part in (count, diagram.note) if part)
    return '\n'.join(part for part in (diagram.name, _numbers(diagram), last) if part)


def _label(diagram: Reliability) -> str:
    name, *rest = _title(diagram).split('\n')
    return f'{name}\n{", ".join(rest)}'


def _bar_handles(diagrams: Sequence[Reliability]) -> list:
    handles = [Line2D([], [], color='black', linestyle='--', linewidth=1, label='calibrated')]
    if any(diagram.equal_mass for diagram in diagrams):
        handles += [
            Line2D([], [], color=COLOURS[0], marker='o', markersize=4, label='bins of equal count'),
            Line2D([], [], color=OVER['edgecolor'], linewidth=1.2, label='gap'),
        ]
    if not all(diagram.equal_mass for diagram in diagrams):
        handles += [
            Patch(facecolor=ACCURACY, label='accuracy'),
            Patch(**OVER, linewidth=0.5, label='over-confident by'),
            Patch(**UNDER, linewidth=0.5, label='under-confident by'),
        ]
    if any(diagram.band is not None and diagram.band.isfinite().any() for diagram in diagrams):
        # Upright, as it is drawn.
        upright = dict(color='black', linestyle='none', marker='|', markersize=9)
        handles.append(Line2D([], [], **upright, label='95 % interval'))
    return [
        *handles,
        Line2D([], [], color='black', linewidth=1.3, label='mean accuracy'),
        Line2D([], [], color='black', linestyle=':', linewidth=1.3, label='mean confidence'),
    ]


def _curve_handles(diagrams: Sequence[Reliability]) -> list:
    handles = [
        Line2D(
            [], [], color=COLOURS[index % len(COLOURS)], marker=MARKERS[index % len(MARKERS)],
            markersize=4.5, label=_label(diagram),
        )
        for index, diagram in enumerate(diagrams)
    ]  # fmt: skip
    return [*handles, Line2D([], [], color='black', linestyle='--', label='calibrated')]
