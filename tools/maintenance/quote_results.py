"""Bring the numbers of README and docs in line with what was measured, in docs/results/*.json.

A row of a table says in a comment where its numbers come from: <!-- digits: CE --> is the row CE of
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
            new = quoted(old, measured)
        except ValueError as error:
            parser.error(f'{page}: {error}')
        if new != old:
            print(page)
            changed.append(page)
            if not args.check:
                page.write_text(new, encoding='utf-8')
    parser.exit(int(args.check and bool(changed)))


def quoted(page, measured):
    """Return a page with the numbers of its tables as they were measured."""
    lines, headings = page.split('\n'), []
    for number, line in enumerate(lines):
        headings = (headings or line.split('|')) if line.startswith('|') else []
        if headings and SOURCE.search(line):
            lines[number] = '|'.join(quoted_cells(line, headings, measured))
        elif headings and UNSOURCED.search(line):
            raise ValueError(f'say where it was measured: {line}')
    return '\n'.join(lines)


def quoted_cells(line, headings, measured):
    row, start = None, 0
    for cell, heading in zip(line.split('|'), headings, strict=True):
        source = SOURCE.search(cell)
        if source:
            rows = [row for table in measured.get(source[1], ()) for row in table['rows']]
            named = [row for row in rows if row['label'] == source[2]]
            if len(named) != 1:
                raise ValueError(f'{len(named)} rows {source[2]!r} in {source[1]}.json: {line}')
            (row,) = named
        start = source.end() if source else 0
        if row and NUMBER.search(cell, start) and 'paper' not in heading:
            cell = cell[:start] + NUMBER.sub(figure(row, heading), cell[start:], count=1)
        yield cell


def figure(row, heading):
    """Return the measured figure of the metric that a heading names."""
    keys = dict.fromkeys((*HEADLINE, *(key for run in row['runs'] for key in run['metrics'])))
    for key in keys:
        values = [run['metrics'][key] for run in row['runs'] if key in run['metrics']]
        named = re.search(rf'(?<![\w-]){re.escape(metric_name(key))}(?![\w-])', heading)
        if named and values:
            return mean_and_deviation(values, key)
    raise ValueError(f'{row["label"]!r} has no metric of the column {heading.strip()!r}')


if __name__ == '__main__':
    main()
