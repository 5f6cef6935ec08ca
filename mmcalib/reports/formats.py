"""Tables of runs as text, Markdown, HTML, LaTeX, CSV and JSON; measured numbers as their cells."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmcalib.metrics.metric_text import INTERVAL, metric_heading, number_text
from mmcalib.reports.reported_runs import ReportedRun
from mmcalib.reports.shifts import common_metrics, metrics_by_part, tests_by_group
from mmcalib.reports.tables import Row, Table
from mmcalib.tables import TextTable, escape_markdown
from mmcalib.texts import printable

NO_VALUE = '–'


@dataclass(frozen=True)
class Marks:
    """Characters of a format around a title and before a note."""

    before_title: str
    after_title: str
    before_note: str


MARKS = {
    'text': Marks('', '\n', ''),
    'markdown': Marks('### ', '\n\n', '- '),
    'latex': Marks('% ', '\n\n', '% '),
}


def format_tables(output_format: str, tables: Sequence[Table], excluded: Sequence[str]) -> str:
    """Return tables in a format, with what is in none of them where the format has a place.

    Args:
        output_format: ``'text'``, ``'markdown'``, ``'latex'``, ``'csv'`` or ``'json'``.
        tables: Tables that :func:`~mmcalib.reports.tables.tables_from_runs` returned.
        excluded: Line for each reason for which runs are in no table.
    """
    if output_format == 'csv':
        return comma_separated(tables)
    if output_format == 'json':
        return measurements(tables)
    return tables_with_notes(tables, excluded, output_format)


def tables_with_notes(
    tables: Sequence[Table], excluded: Sequence[str], output_format: str = 'text'
) -> str:
    """Return tables with their notes, and what is in none of them, as text, Markdown or LaTeX."""
    marks = MARKS[output_format]
    parts = []
    for table in tables:
        title = f'{marks.before_title}{_escape_line(table.name, output_format)}'
        content = table_of_runs(table).write(output_format)
        notes = _listed(table.notes, output_format)
        parts.append(marks.after_title.join([title, content, notes]).rstrip())
    if excluded:
        parts.append(_listed(excluded, output_format))
    return '\n\n'.join(parts)


def _listed(lines: Sequence[str], output_format: str) -> str:
    """Return notes, one per line."""
    mark = MARKS[output_format].before_note
    return '\n'.join(f'{mark}{_escape_line(line, output_format)}' for line in lines)


def _escape_line(text: str, output_format: str) -> str:
    text = printable(text)
    return escape_markdown(text) if output_format == 'markdown' else text


def table_of_runs(table: Table) -> TextTable:
    """Return the rows of a table, with the paper's value behind ours where a row has one."""
    published_keys = {key for row in table.rows for key in row.paper}
    headings = ['loss', 'runs']
    rows = [[row.label, str(len(row.runs))] for row in table.rows]
    for key in table.columns:
        headings.append(metric_heading(key, num_classes=table.num_classes))
        for row, cells in zip(table.rows, rows, strict=True):
            cells.append(_measured_cell(row, key))
        if key in published_keys:
            headings.append('paper')
            for row, cells in zip(table.rows, rows, strict=True):
                cells.append(_published_cell(row, key))
    return TextTable(headings, rows)


def _measured_cell(row: Row, key: str) -> str:
    """Return mean and deviation over several runs, or the value of one with its interval.

    An interval is of a single run, so none stands beside a mean.
    """
    values = row.values(key)
    text = mean_and_deviation(values, key)
    num_runs = len(row.runs)
    if values and len(values) < num_runs:
        return f'{text} ({len(values)} of {num_runs})'
    if num_runs > 1:
        return text
    metrics = row.runs[0].metrics
    ends = [number_text(metrics[key + end], key) for end in INTERVAL if key + end in metrics]
    return f'{text} [{", ".join(ends)}]' if ends else text


def _published_cell(row: Row, key: str) -> str:
    return number_text(row.paper[key], key) if key in row.paper else NO_VALUE


def mean_and_deviation(values: Sequence[float], key: str) -> str:
    """Return ``mean ± standard deviation``, the mean of a single value, a dash for no value.

    Values of which one is NaN or infinite have a mean alone.

    Args:
        values: Values of a metric, one per run.
        key: Key of the metric.
    """
    if not values:
        return NO_VALUE
    mean = number_text(statistics.mean(values), key)
    if len(values) == 1 or not all(map(math.isfinite, values)):
        return mean
    return f'{mean} ± {number_text(statistics.stdev(values), key)}'


def comma_separated(tables: Sequence[Table]) -> str:
    """Return one CSV of all tables, with a line for each run: it has no place for notes."""
    lines = []
    for table in tables:
        for row in table.rows:
            for run in row.runs:
                columns = {'table': table.name, 'loss': row.label, 'seed': run.record.seed}
                lines.append({**columns, 'path': run.path, **run.metrics})
    keys = dict.fromkeys(key for line in lines for key in line)
    file = io.StringIO()
    writer = csv.DictWriter(file, keys, lineterminator='\n')
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue().rstrip()


def measurements(tables: Sequence[Table]) -> str:
    """Return the metrics of each run as JSON, without paths: a file for pages to quote from."""
    content = []
    for table in tables:
        rows = [
            {'label': row.label, 'runs': [run_measurements(run) for run in row.runs]}
            for row in table.rows
        ]
        notes = [note for note in table.notes if note.startswith('Evaluation')]
        content.append({'name': table.name, 'notes': notes, 'rows': rows})
    return json.dumps(content, indent=1, ensure_ascii=False)


def run_measurements(run: ReportedRun) -> dict:
    """Return the seed of a run, when and by which version of mmcalib it was tested, and metrics."""
    return {
        'seed': run.record.seed,
        'date': run.record.date,
        'version': run.record.version,
        'metrics': run.metrics,
    }


def robustness_table(runs: Sequence[ReportedRun]) -> str:
    """Return a table for each model as text: clean data, mean and worst of each group."""
    parts = []
    for run in runs:
        keys = common_metrics(run.tests)
        rows = []
        for part, metrics in metrics_by_part(run.tests, tests_by_group(run.tests)).items():
            rows.append([part, *(number_text(metrics[key], key) for key in keys)])
        headings = ['', *(metric_heading(key) for key in keys)]
        parts.append(f'{_model_title(run)}\n{TextTable(headings, rows).write()}')
    return '\n\n'.join(parts)


def _model_title(run: ReportedRun) -> str:
    """Return loss, seed and checkpoint of a model."""
    words = [run.label]
    if run.record.seed is not None:
        words.append(f'seed {run.record.seed}')
    words.append(Path(run.record.model['members'][0]['checkpoint']).name)
    return ', '.join(words)
