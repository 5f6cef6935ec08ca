"""Tables of runs as text, Markdown, HTML, LaTeX, CSV and JSON; measured numbers as their cells."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from mmcalib.metrics.names import INTERVAL, metric_heading, number_text
from mmcalib.reports import shifts
from mmcalib.reports.tables import Row, Table
from mmcalib.reports.tested_runs import TestedRun
from mmcalib.tables import TextTable, escape_markdown
from mmcalib.texts import printable

NOTHING = '–'
# Of each kind: before a title, after it, before a note.
MARKS = {'text': ('', '\n', ''), 'markdown': ('### ', '\n\n', '- '), 'latex': ('% ', '\n\n', '% ')}


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


def runs_text(table: Table, kind: str = 'text') -> str:
    """Return the rows of a table, with the paper's figures behind ours where a row has them."""
    paper = {key for row in table.rows for key in row.paper}
    headings = ['loss', 'runs']
    rows = [[row.label, str(len(row.runs))] for row in table.rows]
    for key in table.columns:
        headings += [metric_heading(key)] + ['paper'] * (key in paper)
        for row, cells in zip(table.rows, rows, strict=True):
            cells.append(_cell(row, key))
            if key in paper:
                cells.append(number_text(row.paper[key], key) if key in row.paper else NOTHING)
    return TextTable(headings, rows).write(kind)


def _cell(row: Row, key: str) -> str:
    """Return mean and deviation of several runs, and how many have it if not all; of one its ends.

    Intervals are of single runs, so none stands beside a mean.
    """
    values, runs = row.values(key), len(row.runs)
    text = mean_and_deviation(values, key)
    if values and len(values) < runs:
        return f'{text} ({len(values)} of {runs})'
    ends = [number_text(each, key) for end in INTERVAL for each in row.values(f'{key}{end}')]
    return f'{text} [{", ".join(ends)}]' if ends and runs == 1 else text


def report(tables: Sequence[Table], others: Sequence[str], kind: str = 'text') -> str:
    """Return tables with their notes, and what is in none of them, as text, Markdown or LaTeX."""
    title, gap, item = MARKS[kind]
    parts = []

    def mark(text: str) -> str:
        return escape_markdown(printable(text)) if kind == 'markdown' else printable(text)

    for table in tables:
        notes = '\n'.join(f'{item}{mark(note)}' for note in table.notes)
        parts.append(gap.join([title + mark(table.name), runs_text(table, kind), notes]).rstrip())
    lines = '\n'.join(f'{item}{mark(line)}' for line in others)
    return '\n\n'.join(filter(None, [*parts, lines]))


def comma_separated(tables: Sequence[Table]) -> str:
    """Return one CSV of all tables, with a line for each run: it has no place for notes."""
    lines = [
        {'table': table.name, 'loss': row.label, 'seed': run.record.seed, 'path': run.path}
        | run.metrics
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
                {'label': row.label, 'runs': [*map(_measured, row.runs)]} for row in table.rows
            ],
        }
        for table in tables
    ]
    return json.dumps(content, indent=1, ensure_ascii=False)


def _measured(run: TestedRun) -> dict:
    return {'seed': run.record.seed, 'date': run.record.date, 'metrics': run.metrics}


def robustness_table(runs: Sequence[TestedRun]) -> str:
    """Return the tables of models as text: clean, and mean and worst of each group."""
    parts = []
    for run in runs:
        keys = shifts.measures_of(run.tests)
        rows = [
            [name, *(number_text(values[key], key) for key in keys)]
            for name, values in shifts.rows(run.tests, shifts.groups(run.tests)).items()
        ]
        seed, path = run.record.seed, run.record.model['members'][0]['checkpoint']
        title = ', '.join([run.label, *([] if seed is None else [f'seed {seed}']), Path(path).name])
        table = TextTable(['', *map(metric_heading, keys)], rows)
        parts.append(f'{title}\n{table.write()}')
    return '\n\n'.join(parts)
