"""The result of a sweep: ``sweep.json``, its table, and its figure."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmcalib.metrics.keys import ECE, columns_of, metric_heading
from mmcalib.record import read_json
from mmcalib.reports.formats import in_markdown, mean_and_deviation
from mmcalib.visualization.style import save_figure
from mmcalib.visualization.sweep import draw_sweeps
from mmcalib.work_dir import SWEEP, whole_file

TABLE = 'sweep.md'
Value = float | str


def value_text(value: Value) -> str:
    """Return the name of a value in folders and tables."""
    return f'{value:g}' if isinstance(value, float) else value


def summarise(
    settings: Mapping, results: Sequence[tuple[str, Value, dict | None, dict | None]]
) -> dict:
    """Return the metrics of every value, and mark the one with the least ECE on validation data.

    Args:
        settings: Settings that all values share.
        results: Name and value of each training, and its metrics on the validation and the test
            split, None where there are none yet.
    """
    rows = {}
    for name, value, validated, tested in results:
        new = {'value': value, 'val': [], 'test': [], 'missing': [], 'chosen': False}
        row = rows.setdefault(value, new)
        row['val'] += [validated] if validated else []
        row['test'] += [tested] if tested else []
        row['missing'] += [] if validated else [name]
    complete = {value: mean_ece(row) for value, row in rows.items() if not row['missing']}
    complete = {value: ece for value, ece in complete.items() if math.isfinite(ece)}
    if complete:  # while some are missing, it is the best so far
        rows[min(complete, key=complete.get)]['chosen'] = True
    return {**settings, 'rows': list(rows.values())}


def mean_ece(row: Mapping) -> float:
    """Return the mean over seeds on validation data, NaN without any."""
    values = [metrics[ECE] for metrics in row['val'] if ECE in metrics]
    return statistics.mean(values) if values else math.nan


def read_sweep(folder: str | Path) -> dict:
    """Read the summary of a sweep.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is cut off; the message says what to do.
    """
    path = Path(folder, SWEEP)
    if not path.is_file():
        raise FileNotFoundError(f'no {SWEEP} in {folder}: it is not the work dir of a sweep')
    return read_json(
        path,
        'remove it and run the sweep again with all of its values; trainings that are finished are '
        'kept',
    )


def write_sweep(folder: Path, summary: Mapping) -> None:
    """Write a summary and its table, each as a whole or not at all."""
    content = json.dumps(summary, indent=2, ensure_ascii=False)
    for name, text in ((SWEEP, content), (TABLE, sweep_table(summary))):
        with whole_file(folder / name) as path:
            path.write_text(text + '\n', encoding='utf-8')


def write_sweep_figure(summaries: Sequence[Mapping], paths: Sequence[str | Path]) -> None:
    """Draw sweeps into files, whose suffixes are their formats.

    Raises:
        ValueError: If there is nothing to draw, or a format is unknown.
    """
    figure = draw_sweeps(summaries)
    for name in paths:
        save_figure(figure, name)


def sweep_table(summary: Mapping) -> str:
    """Return a sweep in Markdown, with a line for every value."""
    rows = summary['rows']
    columns = [
        (split, key)
        for split in ('val', 'test')
        for key in columns_of(key for row in rows for each in row[split] for key in each)
    ]
    names = (
        summary['parameter'],
        *(f'{split} {metric_heading(key)}' for split, key in columns),
        '',
    )
    table = [[in_markdown(name) for name in names], ['--:'] * (len(names) - 1) + ['---']]
    for row in rows:
        figures = (
            mean_and_deviation([each[key] for each in row[split] if key in each], key)
            for split, key in columns
        )
        table.append([in_markdown(value_text(row['value'])), *figures, _remark(row, rows)])
    title = in_markdown(f'{summary["loss"]}, {summary["experiment"]}')
    lines = [title, '', *(f'| {" | ".join(cells)} |' for cells in table)]
    if summary.get('validates_on_test_data'):
        lines += ['', 'This config validates on its test data, so the choice has seen them.']
    return '\n'.join(lines)


def _remark(row: Mapping, rows: Sequence[Mapping]) -> str:
    if row['chosen']:
        others = [each for each in rows if each is not row and not each['missing']]
        ties = [value_text(each['value']) for each in others if mean_ece(each) == mean_ece(row)]
        tie = f', the first of a tie with {in_markdown(", ".join(ties))}' if ties else ''
        return f'**chosen**{tie}'
    if row['missing']:
        return in_markdown(f'unfinished: {", ".join(row["missing"])}')
    return 'test not used for selection' if row['test'] else ''
