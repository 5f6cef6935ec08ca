"""The result of a sweep: ``sweep.json`` and its table."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from pathlib import Path

from mmcalib.metrics import PROTOCOLS, CalibrationStatistics
from mmcalib.metrics.errors import calibration_error
from mmcalib.metrics.intervals import gap_intervals
from mmcalib.metrics.keys import ECE, INTERVAL, columns_of, metric_heading
from mmcalib.record import Record
from mmcalib.reports.formats import in_markdown, mean_and_deviation, table_text
from mmcalib.work_dir import RESULTS, STATISTICS, SWEEP, of_split, whole_file

TABLE = 'sweep.md'
SPLITS = ('val', 'test')
Value = float | str


def value_text(value: Value) -> str:
    """Return the name of a value in folders and tables."""
    return f'{value:g}' if isinstance(value, float) else value


def has_results(mine: Path, split: str) -> bool:
    """Return whether a training has been evaluated on a split."""
    return (mine / of_split(RESULTS, split)).is_file()


def metrics_in(mine: Path, split: str) -> list[dict]:
    """Return the metrics of a training, with the interval of its ECE over images, if any."""
    if not has_results(mine, split):
        return []
    metrics = Record.read(mine / of_split(RESULTS, split)).metrics
    path = mine / of_split(STATISTICS, split)
    if f'{ECE}{INTERVAL[0]}' not in metrics and path.is_file():
        statistics = CalibrationStatistics.load(path)
        if PROTOCOLS[statistics.protocol].group is None:  # else it is a mean of several
            bounds = gap_intervals(
                {ECE: calibration_error}, statistics.image_bins,
                coverage=0.95, num_bootstrap=1000, seed=0, limits={},
            )[ECE]  # fmt: skip
            metrics |= {f'{ECE}{end}': bound for end, bound in zip(INTERVAL, bounds, strict=True)}
    return [metrics]


def write_summary(folder: Path, settings: Mapping, trainings: Mapping[Path, Value]) -> dict:
    """Write the metrics of every value, the one of least ECE on validation data marked.

    Args:
        folder: Of the sweep.
        settings: What all values share.
        trainings: The value of each, by its work dir.
    """
    rows = {}
    for mine, value in trainings.items():
        new = {'value': value, 'val': [], 'test': [], 'missing': [], 'chosen': False}
        row = rows.setdefault(value, new)
        for split in SPLITS:
            row[split] += metrics_in(mine, split)
        if not has_results(mine, 'val'):
            row['missing'].append(mine.relative_to(folder).as_posix())
    complete = [row for row in rows.values() if math.isfinite(mean_ece(row))]
    if complete:  # while some are missing, it is the best so far
        min(complete, key=mean_ece)['chosen'] = True
    summary = {**settings, 'rows': list(rows.values())}
    content = json.dumps(summary, indent=2, ensure_ascii=False)
    for name, text in ((SWEEP, content), (TABLE, sweep_table(summary))):
        with whole_file(folder / name) as path:
            path.write_text(text + '\n', encoding='utf-8')
    return summary


def mean_ece(row: Mapping) -> float:
    """Return the mean over seeds on validation data, NaN while one is missing."""
    values = [metrics[ECE] for metrics in row['val'] if ECE in metrics]
    return statistics.mean(values) if values and not row['missing'] else math.nan


def sweep_table(summary: Mapping) -> str:
    """Return a sweep in Markdown, with a line for every value."""
    rows, headings = summary['rows'], [summary['parameter']]
    table = [[value_text(row['value'])] for row in rows]
    for split in SPLITS:
        for key in columns_of(key for row in rows for each in row[split] for key in each):
            headings.append(f'{split} {metric_heading(key)}')
            for row, cells in zip(rows, table, strict=True):
                values = [each[key] for each in row[split] if key in each]
                cells.append(mean_and_deviation(values, key))
    for row, cells in zip(rows, table, strict=True):
        cells.append(_remark(row, rows))
    title = in_markdown(f'{summary["loss"]}, {summary["experiment"]}')
    lines = [title, '', table_text([*headings, ''], table, 'markdown')]
    if summary.get('validates_on_test_data'):
        lines += ['', 'This config validates on its test data, so the choice has seen them.']
    return '\n'.join(lines)


def _remark(row: Mapping, rows: list[Mapping]) -> str:
    if row['chosen']:
        ties = [value_text(each['value']) for each in rows if mean_ece(each) == mean_ece(row)]
        return f'chosen, the first of a tie with {", ".join(ties[1:])}' if ties[1:] else 'chosen'
    if row['missing']:
        return f'unfinished: {", ".join(row["missing"])}'
    return 'test not used for selection' if row['test'] else ''
