"""Tables of runs as text, Markdown, CSV and JSON, and measured numbers as their cells."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import re
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mmcalib.metrics.keys import INTERVAL, metric_heading, number_text

if TYPE_CHECKING:  # tables are built of what is formatted here
    from mmcalib.reports.tables import Row, Table

NOTHING = '–'
LABEL_WIDTH = 60  # longer names of rows take several lines


def mean_and_deviation(values: Sequence[float], key: str) -> str:
    """Return ``mean ± standard deviation``, the mean of a single value, a dash of none.

    Of values of which one is NaN or infinite, there is a mean alone.

    Args:
        values: Of a metric, in several runs.
        key: Of the metric.
    """
    if not values:
        return NOTHING
    mean, deviation = number_text(statistics.mean(values), key), standard_deviation(values)
    return mean if deviation is None else f'{mean} ± {number_text(deviation, key)}'


def standard_deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation of a sample, None of less than two values or not finite."""
    known = len(values) > 1 and all(map(math.isfinite, values))
    return statistics.stdev(values) if known else None


def in_markdown(text: str) -> str:
    """Return a text as Markdown shows it: names of runs and losses are no markup."""
    text = html.escape(text, quote=False).replace('|', '&#124;')
    return re.sub(r'[\\`*]|\](?=[(\[:])|(?<!\w)_|_(?!\w)', r'\\\g<0>', text)


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table as wide as it needs: its first column left, the others right."""
    lines = [list(headings)]
    for first, *others in rows:
        label, *more = textwrap.wrap(first, LABEL_WIDTH, subsequent_indent='  ')
        lines += [[label, *others], *([part, *([''] * len(others))] for part in more)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ['─' * width for width in widths])
    return [
        '  '.join(
            text.rjust(width) if place else text.ljust(width)
            for place, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


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


def text(tables: Sequence[Table], others: Mapping[str, Sequence[str]]) -> str:
    """Return tables as plain text, as wide as their columns need."""
    parts = [
        '\n'.join([table.name, *text_table(header(table), _rows(table)), *table.notes])
        for table in tables
    ]
    return '\n\n'.join([*parts, *others_left_out(others)])


def _rows(table: Table) -> list[list[str]]:
    return [cells(table, row) for row in table.rows]


def markdown(tables: Sequence[Table], others: Mapping[str, Sequence[str]]) -> str:
    """Return tables in Markdown."""
    lines = []
    for table in tables:
        names = header(table)
        lines += [f'### {in_markdown(table.name)}', '', _markdown_row(names)]
        lines += ['|---|' + '--:|' * (len(names) - 1)]
        lines += map(_markdown_row, _rows(table))
        lines += ['', *(f'- {in_markdown(note)}' for note in table.notes), '']
    lines += [f'- {in_markdown(line)}' for line in others_left_out(others)]
    return '\n'.join(lines).rstrip()


def _markdown_row(texts: Sequence[str]) -> str:
    return f'| {" | ".join(map(in_markdown, texts))} |'


def comma_separated(tables: Sequence[Table]) -> str:
    """Return one CSV of all tables: mean, standard deviation and published value of each column.

    It has no place for the notes of the tables.
    """
    keys = list(dict.fromkeys(key for table in tables for key in _all_keys(table)))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator='\n')
    parts = ('mean', 'std', 'paper')
    writer.writerow(['table', 'loss', 'runs', *(f'{key} {part}' for key in keys for part in parts)])
    for table in tables:
        for row in table.rows:
            line = [table.name, row.label, len(row.runs)]
            for key in keys:
                values = row.values(key)
                line.append(statistics.mean(values) if values else '')
                line.append(standard_deviation(values))
                line.append(row.paper.get(key, ''))
            writer.writerow(line)
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


def _all_keys(table: Table) -> list[str]:
    """Return the columns of a table with the ends of their intervals behind them."""
    found = {key for row in table.rows for run in row.runs for key in run.metrics}
    ends = ('', *INTERVAL)
    return [key + end for key in table.columns for end in ends if not end or key + end in found]


def notes(tables: Sequence[Table], others: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the notes that a CSV or a JSON file has no place for."""
    return [f'{table.name}: {note}' for table in tables for note in table.notes] + others_left_out(
        others
    )


def others_left_out(others: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line for each reason why folders are in no table."""
    return [f'In no table, {reason}: {", ".join(paths)}.' for reason, paths in others.items()]
