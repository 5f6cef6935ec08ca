"""How evaluations look in figures of several: a loss has one colour in all of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.colors import to_hex, to_rgb

from mmcalib.visualization.figure_style import COLOURS, LINES, MARKERS

# By the names that mmcalib.record gives them. The colour-blind can tell those of the
# first six from each other, which most figures compare.
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
SPELT_OUT = {
    'cross-entropy': 'CE',
    'margin-based label smoothing': 'MbLS',
    'label smoothing': 'LS',
    'focal loss': 'FL',
}
# What a name begins with, also that of a config's folder, as in mbls/digits.
_LOSS = re.compile(
    rf'({"|".join(map(re.escape, [*LOSS_COLOURS, *SPELT_OUT]))})(?![\w-])', re.IGNORECASE
)
_BY_NAME = {name.lower(): name for name in LOSS_COLOURS} | SPELT_OUT
# How much white the further evaluations of a loss have in its colour.
WHITE = (0.0, 0.4, 0.6)


class Look(NamedTuple):
    """The colour, style of line and marker of an evaluation."""

    colour: str
    line: str
    marker: str


def looks_of(names: Sequence[str]) -> list[Look]:
    """Return the looks of evaluations in one figure, by their names.

    A name that begins with a loss has the colour of the loss; the second and further ones of a loss
    are lighter, or have lines of another style, which tells twelve apart. Names without a loss, and
    those of several losses, take colours that no loss in the figure has.
    """
    losses = [_loss_of(name) for name in names]
    taken = {LOSS_COLOURS[loss] for loss in losses if loss}
    others = [colour for colour in COLOURS if colour not in taken]
    found, before, unknown = [], Counter(), 0
    for place, loss in enumerate(losses):
        if loss:
            number = before[loss]
            before[loss] += 1
            colour = _lighter(LOSS_COLOURS[loss], WHITE[number % len(WHITE)])
        else:
            number, index = divmod(unknown, len(others))
            unknown += 1
            colour = others[index]
        marker = MARKERS[(place + place // len(MARKERS)) % len(MARKERS)]
        found.append(Look(colour, LINES[number % len(LINES)], marker))
    return found


def _loss_of(name: str) -> str | None:
    """Return the loss that a name begins with, None if there is none or more than one."""
    found = [_LOSS.match(part) for part in re.split(r' [+&] ', name)]
    losses = {_BY_NAME[match[1].lower()] for match in found if match}
    return losses.pop() if found[0] and len(losses) == 1 else None


def _lighter(colour: str, white: float) -> str:
    return to_hex([white + (1 - white) * part for part in to_rgb(colour)]).upper()
