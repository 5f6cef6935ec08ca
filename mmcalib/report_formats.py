"""Tables of runs as text, Markdown and CSV."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from mmcalib.report import Row, Table

NAMES = {'accuracy/top1': 'top-1'}
WIDTH = 200  # of text that is not for a terminal


def text(tables: Sequence[Table], others: Mapping[str, Sequence[str]], width: int = WIDTH) -> str:
    """Return tables as a terminal shows them."""
    console = Console(file=io.StringIO(), width=width)
    for table in tables:
        grid = RichTable(title=table.name, title_justify='left', box=box.SIMPLE_HEAD)
        for index, name in enumerate(_header(table)):
            grid.add_column(name, justify='left' if index == 0 else 'right')
        for row in table.rows:
            grid.add_row(*_cells(table, row))
        console.print(grid)
        for note in table.notes:
            console.print(note, markup=False, highlight=False, soft_wrap=True)
        console.print()
    for line in _others(others):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return console.file.getvalue().rstrip()


def markdown(tables: Sequence[Table], others: Mapping[str, Sequence[str]]) -> str:
    """Return tables in Markdown."""
    lines = []
    for table in tables:
        header = _header(table)
        lines += [f'### {table.name}', '']
        lines += [f'| {" | ".join(header)} |', '|---|' + '--:|' * (len(header) - 1)]
        lines += [f'| {" | ".join(_cells(table, row))} |' for row in table.rows]
        lines += ['', *(f'- {note}' for note in table.notes), '']
    lines += [f'- {line}' for line in _others(others)]
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
            cells = [table.name, row.label, len(row.runs)]
            for key in keys:
                values = row.values(key)
                cells.append(statistics.mean(values) if values else '')
                cells.append(statistics.stdev(values) if len(values) > 1 else '')
                cells.append(row.paper.get(key, ''))
            writer.writerow(cells)
    return file.getvalue().rstrip()


def notes(tables: Sequence[Table], others: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what a CSV leaves out."""
    return [f'{table.name}: {note}' for table in tables for note in table.notes] + _others(others)


def mean_and_deviation(values: Sequence[float]) -> str:
    """Return ``mean ± standard deviation``, the mean of a single value, a dash of none."""
    if not values:
        return '–'
    mean = f'{statistics.mean(values):.2f}'
    return f'{mean} ± {statistics.stdev(values):.2f}' if len(values) > 1 else mean


def _header(table: Table) -> list[str]:
    header = ['loss', 'runs']
    for key in table.columns:
        header.append(f'{NAMES.get(key, key.split("/")[-1])} (%)')
        if _published(table):
            header.append('paper')
    return header


def _cells(table: Table, row: Row) -> list[str]:
    cells = [row.label, str(len(row.runs))]
    for key in table.columns:
        cells.append(mean_and_deviation(row.values(key)))
        if _published(table):
            cells.append(f'{row.paper[key]:.2f}' if key in row.paper else '–')
    return cells


def _published(table: Table) -> bool:
    return any(row.paper for row in table.rows)


def _others(others: Mapping[str, Sequence[str]]) -> list[str]:
    return [f'In no table, {reason}: {", ".join(paths)}.' for reason, paths in others.items()]
