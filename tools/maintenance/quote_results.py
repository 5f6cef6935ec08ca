"""Bring the numbers of README and docs in line with the measured ones in docs/results/*.json.

A comment in a row of a table names the source of its numbers: <!-- digits: CE --> is the row CE of
digits.json, for the numbers to its right, up to the next comment. The headings name the metrics.
The line below <!-- versions --> names the versions of mmcalib that measured these rows.

Example: tools/report.py work_dirs/*/digits --out docs/results/digits.json, then this tool
"""

import json
import re
from pathlib import Path

from mmcalib.cli.parser import ToolParser
from mmcalib.metrics.metric_text import metric_name
from mmcalib.reports.formats import mean_and_deviation
from mmcalib.reports.metric_columns import HEADLINE

DOCS = Path(__file__).resolve().parents[2] / 'docs'
SOURCE = re.compile(r'<!-- ([\w.-]+): (.+?) -->')
NUMBER = re.compile(r'-?\d+\.\d+( ± \d+\.\d+)?')
VERSIONS = '<!-- versions -->'
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
        elif line == VERSIONS:
            lines[number + 1] = f'Measured with {versions(page, measured)}.'
        elif headings and UNSOURCED.search(line):
            raise ValueError(f'say where it was measured: {line}')
    return '\n'.join(lines)


def versions(page, measured):
    """Return the versions that measured the rows of a page: for each file, the newest first."""
    labels = {}  # file name -> version -> labels of rows
    for name, label in dict.fromkeys(SOURCE.findall(page)):
        for run in measured_row(name, label, measured)['runs']:
            if 'version' in run:
                labels.setdefault(name, {}).setdefault(run['version'], {})[label] = None
    files = {}  # text of the versions -> files whose rows they measured
    for name, by_version in labels.items():
        newest_first = sorted(by_version, key=numbers, reverse=True)
        texts = [f'{version} ({", ".join(by_version[version])})' for version in newest_first]
        texts[-1] = newest_first[-1] if len(texts) == 1 else f'{newest_first[-1]} (the others)'
        files.setdefault(' and '.join(texts), []).append(f'`{name}`')
    if len(files) == 1:
        return next(iter(files))
    return '; '.join(f'{text}: {", ".join(names)}' for text, names in files.items())


def numbers(version):
    """Return the numbers of a version, which order it among others."""
    return [int(number) for number in version.split('.')]


def measured_row(name, label, measured):
    """Return a row of a results file."""
    rows = [row for table in measured.get(name, ()) for row in table['rows']]
    matching_rows = [row for row in rows if row['label'] == label]
    if len(matching_rows) != 1:
        raise ValueError(f'{name}.json has {len(matching_rows)} rows {label!r}')
    return matching_rows[0]


def quote_cells(line, headings, measured):
    """Yield the cells of a row of a table with their measured numbers."""
    row = None
    for cell, heading in zip(line.split('|'), headings, strict=True):
        source = SOURCE.search(cell)
        if source:
            row = measured_row(source[1], source[2], measured)
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
