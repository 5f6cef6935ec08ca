"""Collect tested runs into tables like the paper's: mean and standard deviation over seeds.

Each data set and network has a table, with losses as rows and the published figure beside each
result, if there is one. Runs that belong in no table are listed below.
"""

import argparse
import sys
from pathlib import Path

from mmcalib.cli.names import PROTOCOLS
from mmcalib.cli.parser import ToolParser

FORMATS = ('text', 'markdown', 'csv', 'json', 'html')
SUFFIXES = {'.txt': 'text', '.md': 'markdown', '.csv': 'csv', '.json': 'json', '.html': 'html'}


def parse_args() -> tuple[ToolParser, argparse.Namespace]:
    parser = ToolParser(
        description=__doc__,
        examples=['work_dirs', 'work_dirs/*/digits --html report.html'],
    )
    parser.add_argument('folders', nargs='+', help='work dirs, or folders above them')
    parser.add_argument('--format', choices=FORMATS, help='default: that of --out, else text')
    parser.add_argument('--out', metavar='FILE', help='file to write to, instead of the terminal')
    parser.add_argument(
        '--protocol',
        choices=PROTOCOLS,
        help='take only segmentation runs of this protocol (default: that of most runs of a table)',
    )
    parser.add_argument(
        '--html',
        metavar='FILE',
        help='write one self-contained page with tables, figures and sweeps; short for --format '
        'html --out FILE',
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
    # Takes seconds, which a help need not.
    from rich.console import Console

    from mmcalib.reports import output_formats
    from mmcalib.reports.collect_runs import collect_runs
    from mmcalib.reports.group_runs import tables_of
    from mmcalib.work_dir_files import whole_file

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
