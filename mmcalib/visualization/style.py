"""Colours, panels, legends and titles of all figures, and the way from a figure to pixels."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.colors import to_rgb as to_rgb_values
from matplotlib.figure import Figure

from mmcalib.checks import UserError, check_choice
from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.work_dir import whole_file

# Okabe and Ito's colours, which the colour-blind can tell apart and which differ in lightness too,
# with grey for their black, which is that of hatches; these and markers do without any colour.
COLOURS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#777777')
MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X')
LINES = ('-', '--', '-.', ':')
# Of the runs of one loss: towards black or white, and how far. With four lines these are twelve.
SHADES = ((0, 0.0), (0, 0.45), (1, 0.45))
GREY = '#444444'
# By the names that mmcalib.record gives them, in small letters. The colour-blind can tell those of
# the first six from each other, which most figures compare.
LOSS_COLOURS = {
    **dict(zip(('ce', 'mbls', 'ls', 'fl', 'flsd', 'ecp'), COLOURS, strict=False)),
    'brier': '#875692',
    'dfl': '#BE0032',
    'ifl': '#A89A00',
    'bsce': '#3F2E8C',
    'mdca': '#8DB600',
    'svls': '#654522',
    'nacl': '#2B3D26',
    'ml1-ace': '#C2A878',
    'acls': '#7A1200',
    'cals': '#FF6FB5',
    'adafocal': '#00B8B0',
}
PER_ROW = 4
PANEL, SIDE = 3.2, 2.8  # inches, of a panel with its labels and of its axes
LETTER = 0.063  # inches of one of size 8, on average


def looks_of(names: Sequence[str]) -> list[dict]:
    """Return colour, line and marker of runs in one figure, for ``plot``.

    A name that begins with a loss has its colour, in all figures. Further runs of a loss have other
    shades and lines, and names without one the colours that no loss in the figure has.
    """
    losses = [re.match(r'[\w-]*', name)[0].lower() for name in names]
    taken = {LOSS_COLOURS.get(loss) for loss in losses}
    others = [colour for colour in COLOURS if colour not in taken]
    found, before = [], Counter()
    for place, loss in enumerate(losses):
        known = [LOSS_COLOURS[loss]] if loss in LOSS_COLOURS else others
        number, index = divmod(before[known[0]], len(known))
        before[known[0]] += 1
        towards, share = SHADES[number % len(SHADES)]
        colour = (1 - share) * np.array(to_rgb_values(known[index])) + share * towards
        marker = MARKERS[(place + place // len(MARKERS)) % len(MARKERS)]
        found.append(dict(color=to_hex(colour).upper(), linestyle=LINES[number % 4], marker=marker))
    return found


def panel_figure(count: int, *ratios: float) -> tuple[Figure, np.ndarray]:
    """Return a figure of constrained layout, and the axes of each panel, four panels in a row.

    Args:
        count: Of the panels; their first axes are square.
        ratios: Heights of further axes below these, as shares of them.
    """
    columns, rows, parts = min(count, PER_ROW), -(-count // PER_ROW), (1, *ratios)
    height = rows * (SIDE * sum(parts) + 0.85)
    figure = Figure(figsize=(PANEL * columns + 0.9, height), layout='constrained')
    grid = figure.subplots(rows * len(parts), columns, squeeze=False, height_ratios=parts * rows)
    panels = grid.reshape(rows, len(parts), columns).swapaxes(1, 2).reshape(-1, len(parts))
    for panel in panels:
        for axes, ratio in zip(panel, parts, strict=True):
            axes.set_box_aspect(ratio)
    for axes in panels[count:].flat:
        axes.remove()
    return figure, panels[:count]


def legend(figure: Figure, most: int = 4) -> None:
    """Add a legend of all labels below a figure, which grows by the lines that it has."""
    found = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            found.setdefault(wrapped(label, figure.get_figwidth() - 0.5), handle)
    for columns in range(min(most, len(found)), 0, -1):
        drawn = figure.legend(
            found.values(), found, loc='outside lower center', ncols=columns, frameon=False,
            fontsize=8, handlelength=3.0,
        )  # fmt: skip
        box = drawn.get_window_extent()
        if columns == 1 or box.width < figure.bbox.width:
            break
        drawn.remove()
    figure.set_figheight(figure.get_figheight() + box.height / figure.dpi)
    figure.draw_without_rendering()  # square panels take the layout a second time


def wrapped(text: str, inches: float) -> str:
    """Break the lines of a text of size 8 that are wider."""
    letters = max(int(inches / LETTER), 1)
    return '\n'.join(textwrap.fill(line, letters) for line in text.split('\n'))


def title_of(
    name: str,
    found: CalibrationStatistics,
    figures: Mapping[str, float],
    note: str = '',
    between: str = '\n',
) -> str:
    """Return the name, figures in percent and, behind `between`, the number of predictions."""
    shown = ', '.join(f'{key} {percent(value)}' for key, value in figures.items())
    protocol = f'protocol {found.protocol}' * (found.protocol != 'pooled')
    last = ', '.join(filter(None, [f'n = {found.num_predictions:,}', note, protocol]))
    return '\n'.join(filter(None, [name, between.join(filter(None, [shown, last]))]))


def check_drawable(runs: Mapping[str, CalibrationStatistics]) -> None:
    """Raise a ValueError if there is no run, or one without predictions."""
    if not runs:
        raise UserError('there is no run to draw')
    for name, found in runs.items():
        if not found.num_predictions:
            raise UserError(f'{name!r} has no predictions to draw')


def save_figure(figure: Figure, path: str | Path, *, dpi: float = 200) -> None:
    """Write a figure to a file, or raise a UserError if its suffix is no format of figures."""
    formats = figure.canvas.get_supported_filetypes()
    check_choice(f'the format of {path}', Path(path).suffix.removeprefix('.'), formats)
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi=dpi)


def percent(value: float) -> str:
    """Return a percentage with two digits behind the point."""
    return f'{value:.2f} %'


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
