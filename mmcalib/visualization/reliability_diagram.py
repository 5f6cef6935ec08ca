"""Reliability diagrams: how often predictions are right against how sure they are."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmcalib.visualization.figure_style import GREY, by_line
from mmcalib.visualization.reliability_panels import (
    Reliability,
    bar_handles,
    curve_handles,
    draw_bars,
    draw_curves,
    draw_histogram,
    is_underconfident,
    title_of,
)

PER_ROW = 4
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
    draw_panel = draw_curves if overlay else draw_bars
    handles = curve_handles(diagrams) if overlay else bar_handles(diagrams)
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
        draw_panel(top, panel)
        draw_histogram(below, panel)
        if zoom is not None:
            inset = top.inset_axes(INSETS[is_underconfident(panel)])
            draw_panel(inset, panel)
            inset.set(xlim=zoom, ylim=zoom, xticks=zoom, yticks=zoom)
            inset.tick_params(labelsize=7, pad=1.5, length=2)
            for connector in top.indicate_inset_zoom(inset, edgecolor=GREY).connectors:
                connector.set_visible(False)
        top.tick_params(labelbottom=False)
        if not overlay:
            top.set_title(title_of(panel[0]), fontsize=9, linespacing=1.4)
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
        # Two entries a line fit under a single panel.
        handlelength=1.6,
        columnspacing=0.8,
    )
    return figure
