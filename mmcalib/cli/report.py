"""Collect tested runs into tables like the paper's: mean and standard deviation over seeds.

Each data set and network has a table, with losses as rows and the published figure beside each
result, if there is one. Runs that belong in no table are listed below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmcalib.choices import PROTOCOLS
from mmcalib.cli.options import Options, option, positional


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Options):
    """Options of the command ``report``, which its help describes."""

    examples = (
        'work_dirs',
        'work_dirs/*/digits --html report.html',
        'work_dirs/ce/digits work_dirs/mbls/digits --compare',
    )
    runs = False

    folders: Sequence[str] = positional('work dirs, or folders above them')
    compare: bool = option(
        'compare two tests of the same images, A and B: differences of their metrics, with '
        'intervals over images',
        False,
    )
    format: str | None = option(
        'default: that of --out, else text',
        choices=('text', 'markdown', 'latex', 'csv', 'json', 'html'),
    )
    out: str | None = option('file to write to, instead of the terminal', metavar='FILE')
    protocol: str | None = option(
        'of segmentors, take only runs of this protocol (default: that of most in a table)',
        choices=PROTOCOLS,
    )
    html: str | None = option(
        'also write one self-contained page with tables, figures and sweeps', metavar='FILE'
    )
    figures: str | None = option(
        'also write the figures of the HTML page to this folder', metavar='DIR'
    )
    figure_format: str = option(
        'format of the files in --figures', 'pdf', choices=['pdf', 'svg', 'png']
    )
