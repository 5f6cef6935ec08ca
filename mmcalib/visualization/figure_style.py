"""Colours, legends and titles of all figures, and the way from a figure to pixels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import ImageFont
from torch import Tensor

# Okabe and Ito's colours, which the colour-blind can tell apart and which differ in lightness too,
# with grey for their black, which is that of hatches; these and markers do without any colour.
COLOURS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#777777')
MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X')
LINES = ('-', '--', '-.', ':')
GREY = '#444444'


def colour_of(index: int) -> str:
    """Return the colour of what is drawn at a place; those of the first seven come again."""
    return COLOURS[index % len(COLOURS)]


def line_of(index: int) -> str:
    """Return its style of line, which with its colour tells the first 28 apart."""
    return LINES[index // len(COLOURS) % len(LINES)]


def to_rgb(figure: Figure) -> np.ndarray:
    """Return a figure as ``(H, W, 3)`` uint8 pixels, as visualizers want them."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def as_rgb(image: np.ndarray) -> np.ndarray:
    """Return BGR or grey pixels as ``(H, W, 3)`` uint8 RGB, stretched if they are no bytes."""
    if image.dtype != np.uint8:
        low, high = float(image.min()), float(image.max())
        image = ((image - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)
    if image.ndim == 2 or image.shape[2] < 3:
        return np.repeat(image.reshape(*image.shape[:2], -1)[..., :1], 3, axis=2)
    return np.ascontiguousarray(image[..., 2::-1])


def text_width(text: str, size: float) -> float:
    """Return the width of a line in inches, in matplotlib's own font.

    At the resolution of a screen letters are up to a twentieth wider than they are designed.
    """
    return 1.05 * _font().getlength(text) / 100 * size / 72


@cache
def _font() -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(font_manager.findfont('DejaVu Sans'), 100)


def wrapped(text: str, inches: float, size: float) -> str:
    """Break lines that are wider: after a space, slash, comma or underscore where they have one."""
    lines = []
    for line in text.split('\n'):
        lines.append('')
        for word in re.findall(r'[^ /,_]*[ /,_]|[^ /,_]+', line):
            if lines[-1] and text_width(lines[-1] + word.rstrip(), size) > inches:
                lines.append('')
            for letter in word:
                if text_width(lines[-1] + letter.rstrip(), size) > inches:
                    lines.append('')
                lines[-1] += letter
    return '\n'.join(line.rstrip() for line in lines)


def shortened(text: str, inches: float, size: float) -> str:
    """Leave out the start of a line that is wider."""
    start = 0
    while start < len(text) and text_width(f'…{text[start:]}', size) > inches:
        start += 1
    return f'…{text[start:]}' if text_width(text, size) > inches else text


def percent(value: float) -> str:
    """Return a percentage with two digits behind the point."""
    return f'{value:.2f} %'


@dataclass(frozen=True)
class Evaluation:
    """One evaluation in a figure.

    Attributes:
        name: Of the run or its loss.
        table: ``(3, …)`` bins, ascending: count, correct, sum of confidences.
        figures: By name, in percent, for the title.
        note: Ends the title, such as the protocol.
    """

    name: str
    table: Tensor
    figures: Mapping[str, float] = field(default_factory=dict)
    note: str = ''

    @property
    def title(self) -> str:
        """Name, figures, and number of predictions."""
        figures = ', '.join(f'{key} {percent(value)}' for key, value in self.figures.items())
        last = self._listed(f'n = {round(float(self.table[0].sum())):,}', self.note)
        return '\n'.join(part for part in (self.name, figures, last) if part)

    @property
    def label(self) -> str:
        """The title in two lines, for a legend."""
        name, *rest = self.title.split('\n')
        return f'{name}\n{", ".join(rest)}'

    @property
    def short_label(self) -> str:
        """Name and note."""
        return self._listed(self.name, self.note)

    @staticmethod
    def _listed(*parts: str) -> str:
        return ', '.join(part for part in parts if part)


def check_drawable(evaluations: Sequence[Evaluation], what: str) -> None:
    """Raise a ValueError if there is no evaluation, or one without predictions."""
    if not evaluations:
        raise ValueError(f'there is no evaluation to draw a {what} of')
    for evaluation in evaluations:
        if not evaluation.table[0].any():
            raise ValueError(f'{evaluation.name!r} has no predictions to draw')


def add_legend(figure: Figure, handles: list, most: int = 3) -> None:
    """Add a legend below a figure of constrained layout, of at most so many columns.

    The figure has room for two lines, and grows by any more; labels wider than it are broken.
    """
    beside = 0.6  # inches of a handle and the space around it
    width = figure.get_figwidth() - 0.2
    for handle in handles:
        handle.set_label(wrapped(handle.get_label(), width - beside, 8))
    labels = [handle.get_label() for handle in handles]
    widest = max(text_width(line, 8) for label in labels for line in label.split('\n'))
    columns = max(1, min(len(handles), most, int(width // (widest + beside))))
    lines = sum(
        max(label.count('\n') + 1 for label in labels[start : start + columns])
        for start in range(0, len(labels), columns)
    )
    figure.set_figheight(figure.get_figheight() + 0.17 * max(lines - 2, 0))
    figure.legend(
        handles=handles, loc='outside lower center', ncols=columns, frameon=False, fontsize=8,
        handlelength=2.8,
    )  # fmt: skip


def tidy(axes: Axes) -> None:
    """Give axes a faint grid, and no frame above and to the right."""
    axes.grid(True, axis='y', linewidth=0.4, alpha=0.5)
    axes.set_axisbelow(True)
    axes.spines[['top', 'right']].set_visible(False)
    axes.tick_params(labelsize=8, color=GREY)
