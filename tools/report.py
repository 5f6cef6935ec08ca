"""Collect tested runs into the paper's tables: mean and standard deviation over seeds.

There is a table for each data set and network, with the losses as rows and the paper's figure
beside each where it has one. Runs that do not belong in a table are named below it.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from mmcalib.metrics import PROTOCOLS
from mmcalib.reports import output_formats
from mmcalib.reports.collect_runs import collect_runs
from mmcalib.reports.group_runs import tables_of
from mmcalib.runs.command_line import ToolParser
from mmcalib.work_dir_files import whole_file

FORMATS = ('text', 'markdown', 'csv', 'json', 'html')
SUFFIXES = {'.txt': 'text', '.md': 'markdown', '.csv': 'csv', '.json': 'json', '.html': 'html'}


def parse_args() -> tuple[ToolParser, argparse.Namespace]:
    parser = ToolParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folders', nargs='+', help='work dirs, or folders that hold some')
    parser.add_argument('--format', choices=FORMATS, help="text unless --out's suffix says more")
    parser.add_argument('--out', help='file to write to, in place of the terminal')
    parser.add_argument(
        '--protocol',
        choices=sorted(PROTOCOLS),
        help='take runs of this protocol, such as pooled or paper; by default, that of most runs '
        'of a table',
    )
    parser.add_argument(
        '--html',
        metavar='FILE',
        help='write one self-contained page of the tables, the figures of the runs, and sweeps; '
        'short for --format html --out FILE',
    )
    parser.add_argument(
        '--figures', metavar='DIR', help='also write the figures of the HTML page to this folder'
    )
    parser.add_argument(
        '--figure-format',
        choices=['pdf', 'svg', 'png'],
        default='pdf',
        help='format of the files in --figures (default: %(default)s)',
    )
    return parser, parser.parse_args()


def main() -> None:
    parser, args = parse_args()
    if args.html:
        args.format, args.out = 'html', args.html
    kind = args.format or ('text' if not args.out else SUFFIXES.get(Path(args.out).suffix))
    if kind is None:
        parser.error(f'--out {args.out}: name a {", ".join(SUFFIXES)} file, or add --format')
    if args.figures and kind != 'html':
        parser.error('--figures writes those of the HTML page: add --html FILE')
    with parser.ending_with_errors(FileNotFoundError):
        runs, others = collect_runs(args.folders)
    tables = tables_of(runs, args.protocol)
    if kind in ('csv', 'json'):
        content = (
            output_formats.comma_separated(tables)
            if kind == 'csv'
            else output_formats.measured(tables)
        )
        print('\n'.join(output_formats.notes(tables, others)), file=sys.stderr)
    elif kind == 'html':
        from mmcalib.reports import html  # takes matplotlib along

        content = html.build_page(
            tables,
            others,
            args.folders,
            figures=args.figures,
            figure_format=args.figure_format,
        )
    elif kind == 'markdown':
        content = output_formats.markdown(tables, others)
    else:
        width = Console().width if sys.stdout.isatty() and not args.out else output_formats.WIDTH
        content = output_formats.text(tables, others, width)
    if args.out:
        with whole_file(args.out) as path:
            path.write_text(content + '\n', encoding='utf-8')
        print(f'Written to {args.out}', file=sys.stderr)
    else:
        print(content)


if __name__ == '__main__':
    main()
