"""Collect tested runs into tables like the paper's: mean and standard deviation over seeds.

Each data set and network has a table, with losses as rows and the published figure beside each
result, if there is one. Runs that belong in no table are listed below.
"""

import argparse
import sys
from pathlib import Path

from mmcalib.cli.parser import ToolParser
from mmcalib.names import PROTOCOLS

FORMATS = ('text', 'markdown', 'latex', 'csv', 'json', 'html')
SUFFIXES = {'.txt': 'text', '.md': 'markdown', '.tex': 'latex', '.csv': 'csv', '.json': 'json'}
SUFFIXES |= {'.html': 'html'}


def parse_args() -> tuple[ToolParser, argparse.Namespace]:
    parser = ToolParser(
        runs=False,
        description=__doc__,
        examples=['work_dirs', 'work_dirs/*/digits --html report.html'],
    )
    parser.add_argument('folders', nargs='+', help='work dirs, or folders above them')
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
    return parser, parser.parse_args()


def main() -> None:
    parser, args = parse_args()
    kind = args.format or (SUFFIXES.get(Path(args.out).suffix) if args.out else 'text')
    if kind is None:
        parser.error(f'--out {args.out}: name a {", ".join(SUFFIXES)} file, or add --format')
    # File: format; None is the terminal.
    wanted = {args.out: kind, **({args.html: 'html'} if args.html else {})}
    check_outputs(parser, args)
    if args.figures and 'html' not in wanted.values():
        parser.error('--figures writes those of the HTML page: add --html FILE')
    # Takes seconds, which a help need not.
    from mmcalib.files import whole_file
    from mmcalib.reports.tables import tables_of
    from mmcalib.reports.tested_runs import find_runs

    with parser.ending_with_errors():
        runs, others = find_runs(args.folders)
        tables = tables_of(runs, args.protocol)
        for out, kind in wanted.items():
            content = content_of(kind, tables, others, runs, args)
            # A folder's name may hold bytes that are no text.
            content = content.encode(errors='backslashreplace').decode()
            if out is None:
                print(content)
                continue
            with whole_file(out) as path:
                path.write_text(content + '\n', encoding='utf-8')
            print(f'Written to {out}', file=sys.stderr)


def check_outputs(parser: ToolParser, args: argparse.Namespace) -> None:
    """Refuse files that a report would destroy: records of tests, configs, checkpoints."""
    from mmcalib.files import RESULTS, SWEEP, VALIDATION_RESULTS

    for out in filter(None, (args.out, args.html)):
        if Path(out).name in (RESULTS, VALIDATION_RESULTS, SWEEP):
            parser.error(f'{out} is the name of a record, which would be lost: name another file')
    if args.html and Path(args.html).suffix not in ('.html', '.htm'):
        parser.error(f'--html {args.html}: name a file that ends in .html')


def content_of(
    kind: str, tables: list, others: list[str], runs: list, args: argparse.Namespace
) -> str:
    """Return tables in a format; what CSV and JSON have no place for is printed."""
    from mmcalib.reports import formats
    from mmcalib.texts import printable

    if kind == 'html':
        from mmcalib.reports.page import page_of  # takes matplotlib along

        options = dict(folder=args.figures, figure_format=args.figure_format)
        return page_of(tables, others, runs, **options)
    if kind in ('csv', 'json'):
        notes = [f'{table.name}: {note}' for table in tables for note in table.notes]
        print('\n'.join(map(printable, [*notes, *others])), file=sys.stderr)
        return dict(csv=formats.comma_separated, json=formats.measured)[kind](tables)
    return formats.report(tables, others, kind)


if __name__ == '__main__':
    main()
