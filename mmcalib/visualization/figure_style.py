"""What all figures share: colours, and the way from a figure to pixels."""

from __future__ import annotations

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito's colours, which the colour-blind can tell apart and which differ in lightness too,
# with grey for their black, which is that of hatches; these and markers do without any colour.
COLOURS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#777777')
MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X')
LINES = ('-', '--', '-.', ':')
GREY = '#444444'


def colour_of(index: int) -> str:
    """Return the colour of what is drawn at a place; those of the first seven come again."""
    return COLOURS[index % len(COLOURS)]


def marker_of(index: int) -> str:
    """Return its marker, which with its colour tells the first 49 apart."""
    return MARKERS[(index + index // len(COLOURS)) % len(MARKERS)]


def line_of(index: int) -> str:
    """Return its style of line, which with its colour tells the first 28 apart."""
    return LINES[index // len(COLOURS) % len(LINES)]


def to_rgb(figure: Figure) -> np.ndarray:
    """Return a figure as ``(H, W, 3)`` uint8 pixels, as visualizers want them."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def percent(value: float) -> str:
    """Return a percentage with two digits behind the point."""
    return f'{value:.2f} %'


def by_line(handles: list, per_line: int) -> list:
    """Return handles in the order in which matplotlib, which goes down, fills lines across."""
    return [handle for column in range(per_line) for handle in handles[column::per_line]]
