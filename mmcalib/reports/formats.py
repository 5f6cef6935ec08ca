"""Tables of runs as text, Markdown and CSV."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from mmcalib.reports.tables import Row, Table

NAMES = {'accuracy/top1': 'top-1'}
WIDTH = 200  # of text that is not for a terminal


def text(tables: Sequence[Table], others: Mapping[str, Sequence[str]], width: int = WIDTH) -> str:
    """Return tables as a terminal shows them."""
    console = Console(file=io.StringIO(), width=width)
    for table in tables:
        grid = RichTable(title=table.name, title_justify='left', box=box.SIMPLE_HEAD)
        for index, name in enumerate(header(table)):
            grid.add_column(name, justify='left' if index == 0 else 'right')
        for row in table.rows:
            grid.add_row(*cells(table, row))
        console.print(grid)
        for note in table.notes:
            console.print(note, markup=False, highlight=False, soft_wrap=True)
        console.print()
    for line in others_left_out(others):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return console.file.getvalue().rstrip()


def markdown(tables: Sequence[Table], others: Mapping[str, Sequence[str]]) -> str:
    """Return tables in Markdown."""
    lines = []
    for table in tables:
        names = header(table)
        lines += [f'### {table.name}', '']
        lines += [f'| {" | ".join(names)} |', '|---|' + '--:|' * (len(names) - 1)]
        lines += [f'| {" | ".join(cells(table, row))} |' for row in table.rows]
        lines += ['', *(f'- {note}' for note in table.notes), '']
    lines += [f'- {line}' for line in others_left_out(others)]
    return '\n'.join(lines).rstrip()


def comma_separated(tables: Sequence[Table]) -> str:
    """Return one CSV of all tables: mean, standard deviation and published value of each column.

    It has no place for the notes of the tables.
    """
    keys = list(dict.fromkeys(key for table in tables for key in table.columns))
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
                line.append(statistics.stdev(values) if len(values) > 1 else '')
                line.append(row.paper.get(key, ''))
            writer.writerow(line)
    return file.getvalue().rstrip()


def notes(tables: Sequence[Table], others: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what a CSV leaves out."""
    return [f'{table.name}: {note}' for table in tables for note in table.notes] + others_left_out(
        others
    )


def mean_and_deviation(values: Sequence[float]) -> str:
    """Return ``mean ± standard deviation``, the mean of a single value, a dash of none."""
    if not values:
        return '–'
    mean = f'{statistics.mean(values):.2f}'
    return f'{mean} ± {statistics.stdev(values):.2f}' if len(values) > 1 else mean


def header(table: Table) -> list[str]:
    """Return the headings of a table's columns."""
    names = ['loss', 'runs']
    for key in table.columns:
        names.append(f'{NAMES.get(key, key.split("/")[-1])} (%)')
        if _published(table):
            names.append('paper')
    return names


def cells(table: Table, row: Row) -> list[str]:
    """Return a row's texts, one for each heading."""
    texts = [row.label, str(len(row.runs))]
    for key in table.columns:
        texts.append(mean_and_deviation(row.values(key)))
        if _published(table):
            texts.append(f'{row.paper[key]:.2f}' if key in row.paper else '–')
    return texts


def _published(table: Table) -> bool:
    return any(row.paper for row in table.rows)


def others_left_out(others: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line for each reason why folders are in no table."""
    return [f'In no table, {reason}: {", ".join(paths)}.' for reason, paths in others.items()]
