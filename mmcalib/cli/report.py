"""Collect tested runs into tables like the paper's: mean and standard deviation over seeds.

Each data set and network has a table, with losses as rows and the published figure beside each
result, if there is one. Runs that belong in no table are listed below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmcalib.cli.parser import ToolParser
from mmcalib.names import PROTOCOLS

FORMATS = ('text', 'markdown', 'latex', 'csv', 'json', 'html')


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Options of the command ``report``, which its help describes.

    Attributes:
        folders: Work dirs, or folders above them; two tests for `compare`.
        format: Format of the tables, one of :data:`FORMATS`; None for that of the suffix of `out`,
            which is text on the terminal.
        out: File for the tables, None for the terminal.
        protocol: Protocol of the segmentors to take; None for that of most in a table.
        html: File for a page with tables, figures and sweeps; None for no page.
        figures: Folder for the figures of the page, None to write none.
        figure_format: Format of the files in `figures`, ``'pdf'``, ``'svg'`` or ``'png'``.
        compare: Whether to compare two tests of the same images instead.
    """

    folders: Sequence[str]
    format: str | None = None
    out: str | None = None
    protocol: str | None = None
    html: str | None = None
    figures: str | None = None
    figure_format: str = 'pdf'
    compare: bool = False


def build_parser() -> ToolParser:
    """Return the parser of the command line."""
    parser = ToolParser(
        runs=False,
        description=__doc__,
        examples=[
            'work_dirs',
            'work_dirs/*/digits --html report.html',
            'work_dirs/ce/digits work_dirs/mbls/digits --compare',
        ],
    )
    parser.add_argument('folders', nargs='+', help='work dirs, or folders above them')
    parser.add_argument(
        '--compare',
        action='store_true',
        help='compare two tests of the same images, A and B: differences of their metrics, with '
        'intervals over images',
    )
    parser.add_argument('--format', choices=FORMATS, help='default: that of --out, else text')
    parser.add_argument('--out', metavar='FILE', help='file to write to, instead of the terminal')
    parser.add_argument(
        '--protocol',
        choices=PROTOCOLS,
        help='of segmentors, take only runs of this protocol (default: that of most in a table)',
    )
    parser.add_argument(
        '--html',
        metavar='FILE',
        help='also write one self-contained page with tables, figures and sweeps',
    )
    parser.add_argument(
        '--figures', metavar='DIR', help='also write the figures of the HTML page to this folder'
    )
    parser.add_argument(
        '--figure-format',
        choices=['pdf', 'svg', 'png'],
        default='pdf',
        help='format of the files in --figures',
    )
    return parser


def parse(parser: ToolParser, arguments: Sequence[str]) -> ReportOptions:
    """Return the options on a command line."""
    return ReportOptions(**vars(parser.parse_args(arguments)))
