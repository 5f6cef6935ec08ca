"""Figures of square panels in rows, with one legend below them."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmcalib.visualization.figure_style import Evaluation, wrapped

PER_ROW = 4
# Inches.
PANEL = 2.9
LEFT = 0.85
GAP = 0.45
HEADING = 0.65  # of a title of three lines
LINE = 0.175
SPACE = 0.14
FOOT = 0.5


def panel_grid(
    evaluations: Sequence[Evaluation], handles: list, *, overlay: bool, below: float = 0.0
) -> tuple[Figure, list[tuple[list[Evaluation], list[Axes]]]]:
    """Return a figure with its legend, and each panel's evaluations and axes, both from 0 to 100.

    Args:
        evaluations: One panel each, four in a row, under its title.
        handles: Entries of the legend; of an overlay, one for each evaluation is two lines high.
        overlay: All in one panel instead.
        below: Height of further axes below each panel, in inches; 0 for none.
    """
    panels = [list(evaluations)] if overlay else [[evaluation] for evaluation in evaluations]
    columns = min(len(panels), PER_ROW)
    rows = -(-len(panels) // columns)
    per_line = 1 if overlay else min(len(handles), 2 * columns)
    # An overlay has no title, and room for the numbers in its legend.
    heading, size = (0.15, PANEL + 0.9) if overlay else (HEADING, PANEL)
    titles = [wrapped(evaluation.title, PANEL + 0.2, 9) for evaluation in evaluations]
    if overlay:
        for handle in handles:
            handle.set_label(wrapped(handle.get_label(), size - 0.1, 8))
    else:
        heading += LINE * max(title.count('\n') - 2 for title in [*titles, '\n\n'])
    step = size + GAP, heading + size + (SPACE + below if below else 0) + FOOT
    lines = -(-len(handles) // per_line)
    if overlay:
        lines += sum(handle.get_label().count('\n') for handle in handles)
    width = LEFT + columns * step[0] - GAP + 0.2
    height = rows * step[1] + LINE * lines + 0.15
    figure = Figure(figsize=(width, height))

    def add(x: float, y: float, high: float) -> Axes:
        """Add axes as wide as a panel, given inches from the left and the top."""
        place = x / width, 1 - (y + high) / height, size / width, high / height
        return figure.add_axes(place, xlim=(0, 100))

    found = []
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        x, y = LEFT + column * step[0], row * step[1] + heading
        axes = [add(x, y, size)]
        if below:
            axes.append(add(x, y + size + SPACE, below))
        if not overlay:
            axes[0].set_title(titles[number], fontsize=9, linespacing=1.4)
        found.append((panel, axes))
    figure.legend(
        # In the order in which matplotlib, which goes down, fills lines across.
        handles=[handle for line in range(per_line) for handle in handles[line::per_line]],
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
    return figure, found
