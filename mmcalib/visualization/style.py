"""How runs look in all figures: their colours, lines, markers and labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from mmcalib.texts import printable

# By the short name of a loss. The colour-blind can tell those of the first six, which most figures
# compare, from each other.
LOSS_COLOURS = {
    'CE': '#0072B2',
    'MbLS': '#D55E00',
    'LS': '#009E73',
    'FL': '#CC79A7',
    'FLSD': '#E69F00',
    'ECP': '#56B4E9',
    'Brier': '#875692',
    'DFL': '#BE0032',
    'IFL': '#A89A00',
    'BSCE': '#3F2E8C',
    'MDCA': '#8DB600',
    'SVLS': '#654522',
    'NACL': '#2B3D26',
    'mL1-ACE': '#C2A878',
    'ACLS': '#7A1200',
    'CALS': '#FF6FB5',
    'AdaFocal': '#00B8B0',
}
# Okabe and Ito's colours, which the colour-blind can tell apart and which differ in lightness too,
# with grey for their black, which is that of hatches.
COLOURS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#777777')
# There is one more than colours, so that few runs share both where the line says something else.
MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X', '<')
# Runs of one colour differ in the line, and their boxes in the hatch at the same position.
LINES = ('-', '--', '-.', ':', (0, (8, 3)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (5, 5)))
HATCHES = (None, '///', '..', 'xx', 'oo', '\\\\\\', '++', '**')
GREY = '#444444'
INVISIBLE = '\u200b'  # a space without width


@dataclass(frozen=True)
class Look:
    """Look of a run in one figure.

    Attributes:
        colour: Colour of its lines, markers and boxes.
        line: One of :data:`LINES`.
        marker: One of :data:`MARKERS`.
    """

    colour: str
    line: str | tuple
    marker: str


def run_looks(names: Sequence[str]) -> list[Look]:
    """Return the look of each run in one figure.

    A name that begins with a loss has its colour, in all figures; others have those that no loss in
    the figure has. Further runs of a loss, and a run with ``' + temperature'`` behind the name of
    another, have its colour and the next line. So have the ninth colour and those behind it, which
    the eye alone tells from the others with difficulty. Where one loss is all that there is, as of
    one model with several scalings, only its first run has its colour, and the others have others.
    """
    kinds = [loss_in_name(name) or name.split(' + ')[0] for name in names]
    if len(set(kinds)) == 1:
        kinds = [kinds[0], *(f'{kinds[0]}, run {number}' for number in range(1, len(names)))]
    colours = _colours_by_kind(kinds)
    lines_left = {}
    for number, colour in enumerate(colours.values()):
        if colour not in lines_left:
            lines_left[colour] = islice(cycle(LINES), number // len(MARKERS), None)
    looks = []
    for kind, marker in zip(kinds, cycle(MARKERS), strict=False):
        colour = colours[kind]
        looks.append(Look(colour, next(lines_left[colour]), marker))
    return looks


def loss_in_name(name: str) -> str | None:
    """Return the loss with which the name of a run begins, None if it begins with none."""
    first_word = re.match(r'[\w-]*', name)[0].lower()
    for loss in LOSS_COLOURS:
        if loss.lower() == first_word:
            return loss
    return None


def _colours_by_kind(kinds: Sequence[str]) -> dict[str, str]:
    """Return the colour of each kind: that of its loss, else one that no loss here has."""
    loss_colours = {LOSS_COLOURS.get(kind) for kind in kinds}
    free_colours = cycle(colour for colour in COLOURS if colour not in loss_colours)
    colours = {}
    for kind in kinds:
        if kind not in colours:
            colours[kind] = LOSS_COLOURS.get(kind) or next(free_colours)
    return colours


def as_label(name: str) -> str:
    """Return a name that matplotlib shows as it is.

    It takes what stands between dollars for mathematics, leaves out of a legend what begins with an
    underscore, and cannot draw what is no text. Lines stay.
    """
    lines = [printable(line) for line in name.split('\n')]
    text = re.sub(r'(?<!\\)\$', r'\\$', '\n'.join(lines))
    return f'{INVISIBLE}{text}' if text.startswith('_') else text
