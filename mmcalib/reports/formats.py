"""Tables of runs as text, Markdown, HTML, LaTeX, CSV and JSON; measured numbers as their cells."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tabulate import tabulate

from mmcalib.metrics.keys import INTERVAL, metric_heading, number_text

if TYPE_CHECKING:  # tables are built of what is formatted here
    from mmcalib.reports.tables import Row, Table

NOTHING = '–'
LABEL_WIDTH = 60  # longer names of rows take several lines
KINDS = {'text': 'simple', 'markdown': 'pipe', 'html': 'html', 'latex': 'latex_booktabs'}
# Of each kind: before a title, before a note.
MARKS = {'text': ('', ''), 'markdown': ('### ', '- '), 'latex': ('% ', '% ')}


def table_text(headings: Sequence[str], rows: Sequence[Sequence[str]], kind: str = 'text') -> str:
    """Return a table, its first column to the left and the others to the right.

    Args:
        headings: Of the columns.
        rows: Texts, one for each column.
        kind: One of :data:`KINDS`.
    """
    if kind == 'markdown':
        headings, *rows = [[*map(in_markdown, row)] for row in (headings, *rows)]
    return tabulate(
        rows,
        headings,
        tablefmt=KINDS[kind],
        disable_numparse=True,
        colalign=('left', *['right'] * (len(headings) - 1)),
        maxcolwidths=[LABEL_WIDTH] if kind == 'text' else None,
    )


def mean_and_deviation(values: Sequence[float], key: str) -> str:
    """Return ``mean ± standard deviation``, the mean of a single value, a dash of none.

    Of values of which one is NaN or infinite, there is a mean alone.

    Args:
        values: Of a metric, in several runs.
        key: Of the metric.
    """
    if not values:
        return NOTHING
    mean = number_text(statistics.mean(values), key)
    if len(values) == 1 or not all(map(math.isfinite, values)):
        return mean
    return f'{mean} ± {number_text(statistics.stdev(values), key)}'


def in_markdown(text: str) -> str:
    """Return a text as Markdown shows it: names of runs and losses are no markup."""
    text = html.escape(text, quote=False).replace('|', '&#124;')
    return re.sub(r'[\\`*]|\](?=[(\[:])|(?<!\w)_|_(?!\w)', r'\\\g<0>', text)


def header(table: Table) -> list[str]:
    """Return the headings of a table's columns."""
    names = ['loss', 'runs']
    for key in table.columns:
        names += [metric_heading(key), *(['paper'] if _has_published(table, key) else [])]
    return names


def cells(table: Table, row: Row) -> list[str]:
    """Return a row's texts, one for each heading."""
    texts = [row.label, str(len(row.runs))]
    for key in table.columns:
        texts.append(mean_and_deviation(row.values(key), key) + _interval(row, key))
        if _has_published(table, key):
            texts.append(number_text(row.paper[key], key) if key in row.paper else NOTHING)
    return texts


def _has_published(table: Table, key: str) -> bool:
    return any(key in row.paper for row in table.rows)


def _interval(row: Row, key: str) -> str:
    """Return the interval of a single run's metric; that of several is said by their deviation."""
    ends = [row.values(f'{key}{end}') for end in INTERVAL]
    if len(row.runs) > 1 or not all(ends):
        return ''
    return ' [{}, {}]'.format(*(number_text(values[0], key) for values in ends))


def report(tables: Sequence[Table], others: Mapping[str, Sequence[str]], kind: str = 'text') -> str:
    """Return tables with their notes, and what is in none of them, as text, Markdown or LaTeX."""
    (title, item), mark = MARKS[kind], in_markdown if kind == 'markdown' else str
    parts = []
    for table in tables:
        rows = table_text(header(table), [cells(table, row) for row in table.rows], kind)
        notes = '\n'.join(f'{item}{mark(note)}' for note in table.notes)
        gap = '\n\n' if title else '\n'
        parts.append(gap.join([title + mark(table.name), rows, notes]).rstrip())
    lines = [f'{item}{mark(line)}' for line in others_left_out(others)]
    return '\n\n'.join([*parts, *(['\n'.join(lines)] if lines else [])])


def comma_separated(tables: Sequence[Table]) -> str:
    """Return one CSV of all tables, with a line for each run: it has no place for notes."""
    lines = [
        {'table': table.name, 'loss': row.label, 'seed': run.seed, 'path': run.path, **run.metrics}
        for table in tables
        for row in table.rows
        for run in row.runs
    ]
    file = io.StringIO()
    keys = dict.fromkeys(key for line in lines for key in line)
    writer = csv.DictWriter(file, keys, lineterminator='\n')
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue().rstrip()


def measured(tables: Sequence[Table]) -> str:
    """Return the metrics of each run as JSON, without paths: a file for pages to quote from."""
    content = [
        {
            'name': table.name,
            'notes': [note for note in table.notes if note.startswith('Evaluation')],
            'rows': [
                {
                    'label': row.label,
                    'runs': [
                        {
                            'seed': run.seed,
                            'date': run.date,
                            'metrics': run.metrics,
                        }
                        for run in sorted(row.runs, key=lambda run: (str(run.seed), run.date))
                    ],
                }
                for row in table.rows
            ],
        }
        for table in tables
    ]
    return json.dumps(content, indent=1, ensure_ascii=False)


def notes(tables: Sequence[Table], others: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the notes that a CSV or a JSON file has no place for."""
    return [f'{table.name}: {note}' for table in tables for note in table.notes] + others_left_out(
        others
    )


def others_left_out(others: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line for each reason why folders are in no table."""
    return [f'In no table, {reason}: {", ".join(paths)}.' for reason, paths in others.items()]
