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
from mmcalib.visualization.sweep_figure import draw_sweeps
from mmcalib.work_dir import SWEEP, whole_file

TABLE = 'sweep.md'
NOT_FOR_SELECTION = 'not used for selection'
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
        row = rows.setdefault(value, {'value': value, 'val': [], 'test': [], 'missing': []})
        for split, left in (('val', validated), ('test', tested)):
            if left is not None:
                row[split].append(left)
            elif split == 'val':
                row['missing'].append(name)
    candidates = [
        (_mean(row['val'], ECE), value)
        for value, row in rows.items()
        if not row['missing'] and math.isfinite(_mean(row['val'], ECE))
    ]
    # While some are missing, it is the best so far.
    best = min(candidates, key=lambda pair: pair[0])[1] if candidates else None
    for row in rows.values():
        row['chosen'] = best is not None and row['value'] == best
    return {**settings, 'rows': list(rows.values())}


def _mean(metrics: Sequence[dict], key: str) -> float:
    """Return the mean of a metric over seeds, NaN without any."""
    values = [each[key] for each in metrics if key in each]
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
        with whole_file(name) as path:
            figure.savefig(path, dpi=200)


def sweep_table(summary: Mapping) -> str:
    """Return a sweep in Markdown, with a line for every value."""
    rows = summary['rows']
    columns = [
        (split, key)
        for split in ('val', 'test')
        for key in columns_of(key for row in rows for each in row[split] for key in each)
    ]
    names = [f'{split} {metric_heading(key)}' for split, key in columns]
    header = [in_markdown(name) for name in (summary['parameter'], *names, '')]
    lines = [
        in_markdown(f'{summary["loss"]}, {summary["experiment"]}'),
        '',
        f'| {" | ".join(header)} |',
        '|' + '--:|' * (len(header) - 1) + '---|',
    ]
    for row in rows:
        cells = [
            mean_and_deviation([each[key] for each in row[split] if key in each], key)
            for split, key in columns
        ]
        value = in_markdown(value_text(row['value']))
        lines.append(f'| {" | ".join([value, *cells, _remark(row, rows)])} |')
    if summary.get('validates_on_test_data'):
        lines += ['', 'This config validates on its test data, so the choice has seen them.']
    return '\n'.join(lines)


def _remark(row: Mapping, rows: Sequence[Mapping]) -> str:
    if row['chosen']:
        least = _mean(row['val'], ECE)
        ties = [
            value_text(each['value'])
            for each in rows
            if each is not row and not each.get('missing') and _mean(each['val'], ECE) == least
        ]
        tie = in_markdown(', '.join(ties))
        return f'**chosen**, the first of a tie with {tie}' if ties else '**chosen**'
    if row.get('missing'):
        return in_markdown(f'unfinished: {", ".join(row["missing"])}')
    return f'test {NOT_FOR_SELECTION}' if row['test'] else ''
