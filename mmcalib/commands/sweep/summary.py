"""The summary of a sweep: the metrics of every value, the chosen one, and its table."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmcalib.commands.sweep.noise import may_be_best
from mmcalib.commands.sweep.parameter import value_text
from mmcalib.commands.sweep.trainings import Training
from mmcalib.files import STATISTICS, SWEEP, file_name_for_split, write_text
from mmcalib.metrics import PROTOCOLS, CalibrationStatistics
from mmcalib.metrics.intervals import interval_values, metric_values
from mmcalib.metrics.metric_text import INTERVAL, PREFIX, metric_heading
from mmcalib.metrics.unit_tables import UnitTables
from mmcalib.reports.formats import mean_and_deviation
from mmcalib.reports.metric_columns import metric_columns
from mmcalib.tables import TextTable, escape_markdown

SWEEP_TABLE = 'sweep.md'
SPLITS = ('val', 'test')  # in the order of the columns


def write_summary(folder: Path, settings: Mapping, trainings: Sequence[Training]) -> dict:
    """Write and return the metrics of every value; one is chosen on validation data.

    Args:
        folder: Folder of the sweep.
        settings: Settings that the trainings share; of the metric ``by``, the least value on
            validation data is chosen.
        trainings: Trainings of all values, finished or not.
    """
    by = settings['by']
    trainings_by_value = {}
    for training in trainings:
        trainings_by_value.setdefault(training.value, []).append(training)
    rows = {value: summary_row(value, group, by) for value, group in trainings_by_value.items()}
    complete_rows = [row for row in rows.values() if math.isfinite(mean_error(row, by))]
    noise = None
    if complete_rows:  # While trainings are missing, the choice is the best so far.
        min(complete_rows, key=lambda row: mean_error(row, by))['chosen'] = True
        noise = mark_noise(complete_rows, trainings_by_value, by)
    summary = {**settings, 'noise': noise, 'rows': list(rows.values())}
    content = json.dumps(summary, indent=2, ensure_ascii=False)
    for name, text in ((SWEEP, content), (SWEEP_TABLE, summary_text(summary))):
        write_text(folder / name, f'{text}\n')
    return summary


def summary_row(value: float | str, trainings: Sequence[Training], by: str) -> dict:
    """Return the metrics of a value on each split, a dict per seed, and its missing trainings."""
    row = {'value': value, 'val': [], 'test': [], 'missing': [], 'chosen': False}
    for training in trainings:
        for split in SPLITS:
            metrics = metrics_with_intervals(training, split, by)
            if metrics is not None:
                row[split].append(metrics)
        if training.record('val') is None:
            row['missing'].append(training.name)
    return row


def metrics_with_intervals(training: Training, split: str, by: str) -> dict | None:
    """Return the metrics of a training, None before there are any.

    Where they lack the ECE, the metric that is chosen by, or its interval over images, these are
    computed if the tables of each image are known.
    """
    record = training.record(split)
    if record is None:
        return None
    tables = image_tables(training, split)
    if tables is None:
        return record.metrics
    names = list(dict.fromkeys(('ECE', by)))
    all_images = tables.bins.new_ones(1, len(tables.bins))
    values = metric_values(names, tables, all_images)
    computed = {f'{PREFIX}{name}': value.item() for name, value in values.items()}
    low_end, _ = INTERVAL
    if any(f'{key}{low_end}' not in record.metrics for key in computed):
        ends = interval_values(names, tables, level=0.95)
        computed |= {f'{PREFIX}{name}': end for name, end in ends.items()}
    return computed | record.metrics


def image_tables(training: Training, split: str) -> UnitTables | None:
    """Return the tables of each image of a test; None if its metrics are not of these."""
    path = training.work_dir / file_name_for_split(STATISTICS, split)
    if not path.is_file():
        return None
    test_statistics = CalibrationStatistics.load(path)
    if PROTOCOLS[test_statistics.protocol].images_per_unit is not None:
        return None  # Its metrics are means over groups of images.
    return None if test_statistics.image_sums is None else test_statistics.unit_tables()


def mean_error(row: Mapping, by: str) -> float:
    """Return the mean over seeds on validation data, NaN while one is missing."""
    values = validation_errors(row, by)
    return statistics.mean(values) if values and not row['missing'] else math.nan


def validation_errors(row: Mapping, by: str) -> list[float]:
    """Return the metric that is chosen by, of each training of a value on validation data."""
    key = f'{PREFIX}{by}'
    return [metrics[key] for metrics in row['val'] if key in metrics]


def mark_noise(
    rows: Sequence[dict], trainings_by_value: Mapping[float | str, Sequence[Training]], by: str
) -> dict:
    """Mark the rows whose metric on validation data is within the noise of the least one.

    Args:
        rows: Rows of the complete values; each gets ``within_noise``, None if it is unknown.
        trainings_by_value: Trainings of each value.
        by: Name of the metric.

    Returns:
        The evidence: the number of ``images``, None if their tables are unknown, and the least
        number of ``seeds``.
    """
    tables = []
    for row in rows:
        trainings = trainings_by_value[row['value']]
        tables.append([image_tables(training, 'val') for training in trainings])
    counts = set()
    for group in tables:
        counts.update(None if table is None else len(table.bins) for table in group)
    num_images = counts.pop() if len(counts) == 1 else None
    errors = [validation_errors(row, by) for row in rows]
    marks = may_be_best(errors, tables if num_images else None, metric=by)
    for row, is_near in zip(rows, marks or [None] * len(rows), strict=True):
        row['within_noise'] = is_near
    return {'images': num_images, 'seeds': min(map(len, errors))}


def summary_text(summary: Mapping) -> str:
    """Return a sweep in Markdown, with a line for every value."""
    rows = summary['rows']
    headings = [summary['parameter']]
    table = [[value_text(row['value'])] for row in rows]
    for split in SPLITS:
        for key in metric_columns(key for row in rows for metrics in row[split] for key in metrics):
            headings.append(f'{split} {metric_heading(key)}')
            for row, cells in zip(rows, table, strict=True):
                values = [metrics[key] for metrics in row[split] if key in metrics]
                cells.append(mean_and_deviation(values, key))
    headings.append('')
    for row, cells in zip(rows, table, strict=True):
        cells.append(remark(row, rows, summary['by']))
    title = escape_markdown(f'{summary["loss"]}, {summary["experiment"]}')
    lines = [title, '', TextTable(headings, table).write('markdown')]
    sentences = noise_sentences(summary)
    if sentences:
        lines += ['', sentences]
    if summary.get('validates_on_test_data'):
        lines += ['', 'This config validates on its test data, so the choice has seen them.']
    return '\n'.join(lines)


def remark(row: Mapping, rows: Sequence[Mapping], by: str) -> str:
    """Return the last cell of a row: whether the value is chosen, and why not."""
    if row['chosen']:
        least = mean_error(row, by)
        ties = [value_text(other['value']) for other in rows if mean_error(other, by) == least]
        if len(ties) == 1:
            return 'chosen'
        return f'chosen, the first of a tie with {", ".join(ties[1:])}'
    if row['missing']:
        return f'unfinished: {", ".join(row["missing"])}'
    if not math.isfinite(mean_error(row, by)):
        return f'no finite {by}, so not to be chosen'
    remarks = []
    if row.get('within_noise'):
        remarks.append('within noise of the chosen')
    if row['test']:
        remarks.append('test not used for selection')
    return '; '.join(remarks)


def noise_sentences(summary: Mapping) -> str:
    """Return which values the validation does not distinguish from the chosen one.

    The text is empty for a single value.
    """
    noise = summary.get('noise')
    by = summary['by']
    rows = [row for row in summary['rows'] if 'within_noise' in row]
    if not noise or len(rows) < 2:
        return ''
    advice = '' if noise['seeds'] > 2 else ': average over seeds, such as --seeds 0 1 2'
    if any(row['within_noise'] is None for row in rows):
        return f'How much of the differences in {by} is noise is not known{advice}.'
    evidence = []
    if noise['images']:
        evidence.append(f'{noise["images"]:,} validation images')
    if noise['seeds'] > 1:
        evidence.append(f'{noise["seeds"]} seeds')
    near_values = [
        value_text(row['value']) for row in rows if row['within_noise'] and not row['chosen']
    ]
    text = (
        f'Within noise of the chosen {by} (95 %, {" and ".join(evidence)}): '
        f'{", ".join(near_values) or "none"}.'
    )
    if noise['seeds'] == 1:
        text += (
            f' Another seed may change an {by} by more, which one training does not show{advice}.'
        )
    return text
