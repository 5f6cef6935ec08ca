"""The summary of a sweep: the metrics of every value, the chosen one, and its table."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from mmcalib.commands.sweep.noise import may_be_best
from mmcalib.commands.sweep.parameter import value_text
from mmcalib.commands.sweep.trainings import Training
from mmcalib.files import STATISTICS, SWEEP, file_name_for_split, whole_file
from mmcalib.metrics import PROTOCOLS, CalibrationStatistics
from mmcalib.metrics.intervals import interval_values
from mmcalib.metrics.names import ECE, INTERVAL, PREFIX, metric_heading
from mmcalib.metrics.unit_tables import UnitTables
from mmcalib.reports.formats import mean_and_deviation
from mmcalib.reports.metric_columns import metric_columns
from mmcalib.tables import TextTable, escape_markdown

SWEEP_TABLE = 'sweep.md'
SPLITS = ('val', 'test')  # in the order of the columns


def write_summary(folder: Path, settings: Mapping, trainings: Sequence[Training]) -> dict:
    """Write and return the metrics of every value; the least ECE on validation data is chosen.

    Args:
        folder: Folder of the sweep.
        settings: Settings that the trainings share.
        trainings: Trainings of all values, finished or not.
    """
    trainings_by_value = {}
    for training in trainings:
        trainings_by_value.setdefault(training.value, []).append(training)
    rows = {value: summary_row(value, group) for value, group in trainings_by_value.items()}
    complete_rows = [row for row in rows.values() if math.isfinite(mean_ece(row))]
    noise = None
    if complete_rows:  # While trainings are missing, the choice is the best so far.
        min(complete_rows, key=mean_ece)['chosen'] = True
        noise = mark_noise(complete_rows, trainings_by_value)
    summary = {**settings, 'noise': noise, 'rows': list(rows.values())}
    content = json.dumps(summary, indent=2, ensure_ascii=False)
    for name, text in ((SWEEP, content), (SWEEP_TABLE, summary_text(summary))):
        with whole_file(folder / name) as path:
            path.write_text(text + '\n', encoding='utf-8')
    return summary


def summary_row(value: float | str, trainings: Sequence[Training]) -> dict:
    """Return the metrics of a value on each split, a dict per seed, and its missing trainings."""
    row = {'value': value, 'val': [], 'test': [], 'missing': [], 'chosen': False}
    for training in trainings:
        for split in SPLITS:
            metrics = metrics_with_interval(training, split)
            if metrics is not None:
                row[split].append(metrics)
        if training.record('val') is None:
            row['missing'].append(training.name)
    return row


def metrics_with_interval(training: Training, split: str) -> dict | None:
    """Return the metrics of a training, None before there are any.

    Where they lack the interval of the ECE over images, it is computed if the bins of each image
    are known.
    """
    record = training.record(split)
    if record is None:
        return None
    metrics = record.metrics
    if f'{ECE}{INTERVAL[0]}' not in metrics:
        bins = image_bins(training, split)
        if bins is not None:
            ends = interval_values(['ECE'], UnitTables.from_bins(bins), coverage=0.95)
            metrics |= {f'{PREFIX}{name}': end for name, end in ends.items()}
    return metrics


def image_bins(training: Training, split: str) -> Tensor | None:
    """Return the bins of each image of a test ``(n, 3, B)``; None if its ECE is not of these."""
    path = training.work_dir / file_name_for_split(STATISTICS, split)
    if not path.is_file():
        return None
    test_statistics = CalibrationStatistics.load(path)
    if PROTOCOLS[test_statistics.protocol].images_per_unit is not None:
        return None  # Its ECE is a mean over groups of images.
    return test_statistics.image_bins


def mean_ece(row: Mapping) -> float:
    """Return the mean over seeds on validation data, NaN while one is missing."""
    values = validation_errors(row)
    return statistics.mean(values) if values and not row['missing'] else math.nan


def validation_errors(row: Mapping) -> list[float]:
    """Return the ECE of each training of a value on validation data, in percent."""
    return [metrics[ECE] for metrics in row['val'] if ECE in metrics]


def mark_noise(
    rows: Sequence[dict], trainings_by_value: Mapping[float | str, Sequence[Training]]
) -> dict:
    """Mark the rows whose ECE on validation data is within the noise of the least one.

    Args:
        rows: Rows of the complete values; each gets ``within_noise``, None if it is unknown.
        trainings_by_value: Trainings of each value.

    Returns:
        The evidence: the number of ``images``, None if their bins are unknown, and the least number
        of ``seeds``.
    """
    tables = []
    for row in rows:
        trainings = trainings_by_value[row['value']]
        tables.append([image_bins(training, 'val') for training in trainings])
    counts = {None if bins is None else len(bins) for group in tables for bins in group}
    num_images = counts.pop() if len(counts) == 1 else None
    errors = [validation_errors(row) for row in rows]
    marks = may_be_best(errors, tables if num_images else None)
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
        cells.append(remark(row, rows))
    title = escape_markdown(f'{summary["loss"]}, {summary["experiment"]}')
    lines = [title, '', TextTable(headings, table).write('markdown')]
    sentences = noise_sentences(summary)
    if sentences:
        lines += ['', sentences]
    if summary.get('validates_on_test_data'):
        lines += ['', 'This config validates on its test data, so the choice has seen them.']
    return '\n'.join(lines)


def remark(row: Mapping, rows: Sequence[Mapping]) -> str:
    """Return the last cell of a row: whether the value is chosen, and why not."""
    if row['chosen']:
        ties = [value_text(other['value']) for other in rows if mean_ece(other) == mean_ece(row)]
        if len(ties) == 1:
            return 'chosen'
        return f'chosen, the first of a tie with {", ".join(ties[1:])}'
    if row['missing']:
        return f'unfinished: {", ".join(row["missing"])}'
    if math.isnan(mean_ece(row)):
        return 'no finite ECE, so not to be chosen'
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
    rows = [row for row in summary['rows'] if 'within_noise' in row]
    if not noise or len(rows) < 2:
        return ''
    advice = '' if noise['seeds'] > 2 else ': average over seeds, such as --seeds 0 1 2'
    if any(row['within_noise'] is None for row in rows):
        return f'How much of the differences in ECE is noise is not known{advice}.'
    evidence = []
    if noise['images']:
        evidence.append(f'{noise["images"]:,} validation images')
    if noise['seeds'] > 1:
        evidence.append(f'{noise["seeds"]} seeds')
    near_values = [
        value_text(row['value']) for row in rows if row['within_noise'] and not row['chosen']
    ]
    text = (
        f'Within noise of the chosen ECE (95 %, {" and ".join(evidence)}): '
        f'{", ".join(near_values) or "none"}.'
    )
    if noise['seeds'] == 1:
        text += (
            f' Another seed may change an ECE by more, which one training does not show{advice}.'
        )
    return text
