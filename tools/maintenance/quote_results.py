"""Bring the numbers of README and docs in line with the measured ones in docs/results/*.json.

A comment in a row of a table names the source of its numbers: <!-- digits: CE --> is the row CE of
digits.json, for the numbers to its right, up to the next comment. The headings name the metrics.

Example: tools/report.py work_dirs/*/digits --out docs/results/digits.json, then this tool
"""

import json
import re
from pathlib import Path

from mmcalib.cli.parser import ToolParser
from mmcalib.metrics.names import metric_name
from mmcalib.reports.formats import mean_and_deviation
from mmcalib.reports.metric_columns import HEADLINE

DOCS = Path(__file__).resolve().parents[2] / 'docs'
SOURCE = re.compile(r'<!-- ([\w.-]+): (.+?) -->')
NUMBER = re.compile(r'-?\d+\.\d+( ± \d+\.\d+)?')
UNSOURCED = re.compile(r'\|\s*\**\d+\.\d+ ± \d+\.\d+\**\s*(?=\|)')


def main():
    parser = ToolParser(description=__doc__)
    pages = [DOCS.parent / 'README.md', *DOCS.glob('*.md'), *DOCS.glob('[!_]*/*.md')]
    parser.add_argument('pages', nargs='*', type=Path, default=sorted(pages))
    parser.add_argument('--check', action='store_true', help='fail where a page would change')
    args = parser.parse_args()
    measured = {path.stem: json.loads(path.read_text()) for path in DOCS.glob('results/*.json')}
    changed = []
    for page in args.pages:
        old = page.read_text(encoding='utf-8')
        try:
            new = quote_page(old, measured)
        except ValueError as error:
            parser.error(f'{page}: {error}')
        if new != old:
            print(page)
            changed.append(page)
            if not args.check:
                page.write_text(new, encoding='utf-8')
    parser.exit(1 if args.check and changed else 0)


def quote_page(page, measured):
    """Return a page with the numbers of its tables as they were measured."""
    lines = page.split('\n')
    headings = []
    for number, line in enumerate(lines):
        if not line.startswith('|'):
            headings = []
        elif not headings:
            headings = line.split('|')
        if headings and SOURCE.search(line):
            lines[number] = '|'.join(quote_cells(line, headings, measured))
        elif headings and UNSOURCED.search(line):
            raise ValueError(f'say where it was measured: {line}')
    return '\n'.join(lines)


def quote_cells(line, headings, measured):
    """Yield the cells of a row of a table with their measured numbers."""
    row = None
    for cell, heading in zip(line.split('|'), headings, strict=True):
        source = SOURCE.search(cell)
        if source:
            rows = [row for table in measured.get(source[1], ()) for row in table['rows']]
            matching_rows = [row for row in rows if row['label'] == source[2]]
            if len(matching_rows) != 1:
                raise ValueError(
                    f'{source[1]}.json has {len(matching_rows)} rows {source[2]!r}: {line}'
                )
            (row,) = matching_rows
        start = source.end() if source else 0
        if row and NUMBER.search(cell, start) and 'paper' not in heading:
            cell = cell[:start] + NUMBER.sub(figure(row, heading), cell[start:], count=1)
        yield cell


def figure(row, heading):
    """Return the measured figure of the metric that a heading names."""
    keys = dict.fromkeys((*HEADLINE, *(key for run in row['runs'] for key in run['metrics'])))
    for key in keys:
        values = [run['metrics'][key] for run in row['runs'] if key in run['metrics']]
        is_named = re.search(rf'(?<![\w-]){re.escape(metric_name(key))}(?![\w-])', heading)
        if is_named and values:
            return mean_and_deviation(values, key)
    raise ValueError(f'{row["label"]!r} has no metric of the column {heading.strip()!r}')


if __name__ == '__main__':
    main()
