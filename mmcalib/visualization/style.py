"""Colours, panels, legends and titles of all figures, and the way from a figure to pixels."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mmcalib.errors import UserError
from mmcalib.files import whole_file
from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.options import check_choice
from mmcalib.texts import printable

# Okabe and Ito's colours, which the colour-blind can tell apart and which differ in lightness too,
# with grey for their black, which is that of hatches; these and markers do without any colour.
COLOURS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#777777')
# One more than colours, so that few runs share both where the line says something else.
MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X', '<')
# Of the runs of one colour, and the hatches of their boxes.
LINES = ('-', '--', '-.', ':', (0, (8, 3)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (5, 5)))
HATCHES = (None, '///', '..', 'xx', 'oo', '\\\\\\', '++', '**')
GREY = '#444444'
# By their short names, in small letters. The colour-blind can tell those of the
# first six from each other, which most figures compare.
LOSSES = 'ce mbls ls fl flsd ecp brier dfl ifl bsce mdca svls nacl ml1-ace acls cals adafocal'
OTHERS = '#875692 #BE0032 #A89A00 #3F2E8C #8DB600 #654522 #2B3D26 #C2A878 #7A1200 #FF6FB5 #00B8B0'
LOSS_COLOURS = dict(zip(LOSSES.split(), (*COLOURS[:6], *OTHERS.split()), strict=True))
PER_ROW = 4
PANEL, SIDE = 3.4, 2.8  # inches, of a panel with its labels and of its axes
INVISIBLE = '\u200b'  # of no width
LETTER = 0.063  # inches of one of size 8, on average

Run = TypeVar('Run')


def looks_of(names: Sequence[str]) -> list[dict]:
    """Return colour, line and marker of runs in one figure, for ``plot``.

    A name that begins with a loss has its colour, in all figures; others have those that no loss in
    the figure has. Further runs of a loss, and a run with ``' + temperature'`` behind the name of
    another, have its colour and the next line. So have the ninth colour and those behind it, which
    the eye alone tells from the others with difficulty. Where one loss is all that there is, as of
    one model with several scalings, only its first run has its colour, and the others have others.
    """
    words = [re.match(r'[\w-]*', name)[0].lower() for name in names]
    kinds = [
        word if word in LOSS_COLOURS else name.split(' + ')[0]
        for word, name in zip(words, names, strict=True)
    ]
    if len({*kinds}) == 1:
        kinds = [*kinds[:1], *(f'{kinds[0]}, run {n}' for n in range(1, len(names)))]
    taken = {LOSS_COLOURS.get(kind) for kind in kinds}
    free = cycle(colour for colour in COLOURS if colour not in taken)
    colours = {kind: LOSS_COLOURS.get(kind) or next(free) for kind in dict.fromkeys(kinds)}
    lines, markers = {}, cycle(MARKERS)
    for number, colour in enumerate(colours.values()):
        lines.setdefault(colour, islice(cycle(LINES), number // len(MARKERS), None))
    return [
        dict(color=colours[kind], linestyle=next(lines[colours[kind]]), marker=next(markers))
        for kind in kinds
    ]


def as_label(name: str) -> str:
    """Return a name that matplotlib shows as it is.

    It takes what stands between dollars for mathematics, leaves out of a legend what begins with an
    underscore, and cannot draw what is no text. Lines stay.
    """
    lines = [printable(line) for line in name.split('\n')]
    text = re.sub(r'(?<!\\)\$', r'\\$', '\n'.join(lines))
    return f'{INVISIBLE}{text}' if text.startswith('_') else text


def labelled(runs: Mapping[str, Run]) -> dict[str, Run]:
    """Return runs by names that matplotlib shows as they are."""
    return {as_label(name): run for name, run in runs.items()}


def panels_of(
    runs: Mapping[str, object], *ratios: float, overlay: bool = False
) -> tuple[Figure, list[tuple[np.ndarray, list]]]:
    """Return a figure of constrained layout, and the axes of each panel with what it shows.

    Args:
        runs: One panel each, four in a row; the first axes of a panel are square.
        ratios: Heights of further axes below these, as shares of them.
        overlay: Show all runs in one panel.

    Returns:
        The figure and, for each panel, its axes and the names, runs and looks to draw there.
    """
    drawn = [*zip(map(as_label, runs), runs.values(), looks_of([*runs]), strict=True)]
    shown = [drawn] if overlay else [[each] for each in drawn]
    columns, rows, parts = min(len(shown), PER_ROW), -(-len(shown) // PER_ROW), (1, *ratios)
    height = rows * (SIDE * sum(parts) + 0.85)
    figure = Figure(figsize=(PANEL * columns + 0.9, height), layout='constrained')
    grid = figure.subplots(rows * len(parts), columns, squeeze=False, height_ratios=parts * rows)
    panels = grid.reshape(rows, len(parts), columns).swapaxes(1, 2).reshape(-1, len(parts))
    for panel in panels:
        for axes, ratio in zip(panel, parts, strict=True):
            axes.set_box_aspect(ratio)
    for axes in panels[len(shown) :].flat:
        axes.remove()
    return figure, [*zip(panels, shown, strict=False)]


def legend(figure: Figure, most: int = 4) -> None:
    """Add a legend of all labels below a figure, which grows by the lines that it has."""
    found = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(wrapped(label, figure.get_figwidth() - 0.6), handle)
    style = dict(loc='outside lower center', frameon=False, fontsize=8, handlelength=3.0)
    for columns in range(min(most, len(found)), 0, -1):
        drawn = figure.legend(found.values(), found, ncols=columns, **style)
        box = drawn.get_window_extent()
        if columns == 1 or box.width < figure.bbox.width:
            break
        drawn.remove()
    figure.set_figheight(figure.get_figheight() + box.height / figure.dpi)
    figure.draw_without_rendering()  # square panels take the layout a second time


def wrapped(text: str, inches: float) -> str:
    """Break the lines of a text of size 8 that are wider: paths behind their slashes."""
    letters, marked = max(int(inches / LETTER), 1), re.sub(r'(?<=[/_])(?=\w)', '\0 ', text)
    lines = (textwrap.fill(line, letters) for line in marked.split('\n'))
    return re.sub('\0 ?', '', '\n'.join(lines))


def set_title(axes: Axes, text: str) -> None:
    """Give a panel a title, in lines of its width."""
    axes.set_title(wrapped(text, SIDE), fontsize=8)


def title_of(
    name: str,
    found: CalibrationStatistics,
    figures: Mapping[str, float],
    note: str = '',
    between: str = '\n',
) -> str:
    """Return the name, figures in percent and, behind `between`, the number of predictions."""
    shown = ', '.join(f'{key} {value:.2f} %' for key, value in figures.items())
    protocol = f'protocol {found.protocol}' * (found.protocol != 'pooled')
    last = ', '.join(filter(None, [f'n = {found.num_predictions:,}', note, protocol]))
    return '\n'.join(filter(None, [name, between.join(filter(None, [shown, last]))]))


def check_drawable(runs: Mapping[str, CalibrationStatistics]) -> None:
    """Raise a ValueError if a run has no predictions."""
    for name, found in runs.items():
        if not found.num_predictions:
            raise UserError(f'{name!r} has no predictions to draw')


def save_figure(figure: Figure, path: str | Path, *, dpi: float = 200) -> None:
    """Write a figure to a file, or raise a UserError if its suffix is no format of figures."""
    formats = figure.canvas.get_supported_filetypes()
    check_choice(f'the format of {path}', Path(path).suffix.removeprefix('.'), formats)
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi=dpi)


def tidy(axes: Axes) -> None:
    """Give axes a faint grid, and no frame above and to the right."""
    axes.grid(True, axis='y', linewidth=0.4, alpha=0.5)
    axes.set_axisbelow(True)
    axes.spines[['top', 'right']].set_visible(False)
    axes.tick_params(labelsize=8, color=GREY)


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
