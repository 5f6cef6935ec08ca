"""Measured numbers on pages, quoted from files that ``tools/report.py --out FILE.json`` writes.

A row of a Markdown table says where its numbers come from in a comment that readers do not see::

    | cross-entropy <!-- digits: CE --> | 78.08 ± 0.38 | **12.66 ± 0.76** |

stands for the row ``CE`` of ``digits.json``. It holds for the numbers to its right, up to the next
comment; the headings say which metrics they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from mmcalib.metrics.keys import HEADLINE, metric_name
from mmcalib.reports.formats import mean_and_deviation

SOURCE = re.compile(r'<!-- (?P<file>[\w.-]+): (?P<label>.+?) -->')
NUMBER = re.compile(r'-?\d+\.\d+( ± \d+\.\d+)?')
MEASURED = re.compile(r'\|\s*\**\d+\.\d+ ± \d+\.\d+\**\s*(?=\|)')


def written_pages(root: Path) -> list[Path]:
    """Return README and the pages of docs/ as they were written, without those of a built site."""
    pages = [page.relative_to(root) for page in sorted(root.glob('docs/**/*.md'))]
    written = [
        page for page in pages if not {'_build', 'auto_gallery', 'generated'} & set(page.parts)
    ]
    return [root / page for page in (Path('README.md'), *written)]


def read_measured(folder: str | Path) -> dict[str, dict[str, dict]]:
    """Return the rows of all result files in a folder, by their file and label.

    Raises:
        ValueError: If a file has two rows of one label: write each of its tables to its own file.
    """
    measured = {}
    for path in sorted(Path(folder).glob('*.json')):
        rows = [row for table in json.loads(path.read_text('utf-8')) for row in table['rows']]
        measured[path.stem] = {row['label']: row for row in rows}
        if len(measured[path.stem]) < len(rows):
            raise ValueError(f'{path} has two rows of one label: give each table its own file')
    return measured


def with_measured(page: str, measured: Mapping[str, Mapping[str, dict]]) -> str:
    """Return a page with the numbers of its tables as they were measured.

    Args:
        page: Markdown.
        measured: Of :func:`read_measured`.

    Raises:
        ValueError: If a comment names a row that there is not, or a column that it lacks.
    """
    lines, headings = page.split('\n'), []
    for number, line in enumerate(lines):
        if not line.startswith('|'):
            headings = []
        elif not headings:
            headings = line.split('|')
        elif SOURCE.search(line):
            lines[number] = _with_measured_cells(line, headings, measured)
    return '\n'.join(lines)


def without_source(page: str) -> list[str]:
    """Return the rows of a page's tables that have a ``mean ± deviation`` and no source."""
    return [
        line
        for line in page.split('\n')
        if line.startswith('|') and MEASURED.search(line) and not SOURCE.search(line)
    ]


def _with_measured_cells(line: str, headings: list[str], measured: Mapping) -> str:
    cells, row = line.split('|'), None
    for place, (cell, heading) in enumerate(zip(cells, headings, strict=True)):
        source = SOURCE.search(cell)
        if source:
            row = measured.get(source['file'], {}).get(source['label'])
            if row is None:
                raise ValueError(f'no row {source["label"]!r} in {source["file"]}.json: {line}')
        start = source.end() if source else 0
        if row is not None and NUMBER.search(cell, start) and 'paper' not in heading:
            text = _text(row, heading)
            cells[place] = cell[:start] + NUMBER.sub(text, cell[start:], count=1)
    return '|'.join(cells)


def measured_text(row: Mapping, key: str) -> str | None:
    """Return a metric of a row as pages print it, None if it was not measured."""
    values = [run['metrics'][key] for run in row['runs'] if key in run['metrics']]
    return mean_and_deviation(values, key) if values else None


def _text(row: Mapping, heading: str) -> str:
    """Return the measured figure of the metric that a heading names."""
    measured = (key for run in row['runs'] for key in run['metrics'])
    for key in dict.fromkeys((*HEADLINE, *measured)):
        if re.search(rf'(?<![\w-]){re.escape(metric_name(key))}(?![\w-])', heading):
            text = measured_text(row, key)
            if text is not None:
                return text
    raise ValueError(f'{row["label"]!r} has no metric of the column {heading.strip()!r}')
