"""What a test says at its end: its figures, and where its files are."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from shlex import quote

from mmcalib.metrics import CalibrationStatistics
from mmcalib.metrics import names as keys
from mmcalib.metrics.calibration_errors import gap
from mmcalib.metrics.intervals import interval_values
from mmcalib.runs.labels import model_label
from mmcalib.runs.record import Record, checkpoint_paths, is_ensemble
from mmcalib.tables import TextTable
from mmcalib.texts import unlabelled_sentence

NO_VALUES = 'The test has no values, since no metric of test_evaluator has any.'


def unlabelled_classes(labels: set[int], classes: Sequence[str]) -> list[str]:
    """Return sentences about the classes of a segmentor without a labelled pixel, mostly none.

    Args:
        labels: Those that masks hold, the ignored one among them; empty for a classifier.
        classes: Of the data.
    """
    absent = [name for number, name in enumerate(classes) if number not in labels]
    if not labels or not absent:
        return []
    sentences = [unlabelled_sentence(absent)]
    if len(classes) - len(absent) == 1 and len(labels) > 1:
        values = ', '.join(map(str, sorted(labels)))
        sentences.append(
            f'The masks hold {values}, and only one of these is a class: write 0 to '
            f'{len(classes) - 1} into them.'
        )
    return sentences


def test_summary(record: Record, statistics: CalibrationStatistics | None = None) -> list[str]:
    """Return the lines of a small table of a test's figures.

    Args:
        record: Of the test.
        statistics: Of the test's calibration metric; None if it had none.
    """
    metrics = dict(record.metrics)
    counted = statistics if statistics is not None and statistics.num_predictions else None
    if counted is not None and keys.GAP not in metrics:
        metrics |= measured_gap(counted)
    rows = {
        key: (key, number(key, value), '')
        for key, value in metrics.items()
        if not key.startswith(keys.PREFIX)
    }
    ends = {f'{key}{end}' for key in metrics for end in keys.INTERVAL}
    ours = {
        key: (keys.metric_name(key), number(key, value), _remark(metrics, key))
        for key, value in metrics.items()
        if key.startswith(keys.PREFIX) and key not in ends
    }
    if counted is not None:
        count, correct, confidence = counted.narrow_bins.sum(dim=1).tolist()
        if not any(key.startswith(keys.TOP1) for key in metrics):
            of_what = f'of {counted.num_predictions:,} predictions'
            ours.setdefault(keys.ACCURACY, ('accuracy', f'{100 * correct / count:.2f} %', of_what))
        ours.setdefault(keys.CONFIDENCE, ('', f'{100 * confidence / count:.2f} %', ''))
    if keys.ACCURACY in ours:
        _, value, remark = ours[keys.ACCURACY]
        # The accuracy of all predictions has a name of its own in both toolboxes.
        for key in (keys.TOP1, keys.AACC):
            if key in rows and rows[key][1] == value:
                rows[key] = (key, value, remark)
                ours.pop(keys.ACCURACY, None)
    if keys.CONFIDENCE in ours:
        _, *cells = ours[keys.CONFIDENCE]
        ours[keys.CONFIDENCE] = ('mean confidence', *cells)
    first = [key for key in (keys.ACCURACY, keys.CONFIDENCE, keys.GAP) if key in ours]
    rows |= {key: ours[key] for key in [*first, *ours]}
    rows = list(rows.values())
    if not rows:
        return [_heading(record), NO_VALUES]
    table = TextTable(headings=(), rows=rows, alignment='lrl')
    return [_heading(record), *table.write().splitlines()]


test_summary.__test__ = False  # pytest would take it for a test.


def measuring_command(config: str, record: Record) -> str:
    """Return the command that measures the calibration of a model that was tested without it."""
    paths = checkpoint_paths(record.model)
    if is_ensemble(record.model) or not Path(paths[0]).is_file():
        return 'the same command of tools/test.py with --calibration'
    files = ' '.join(quote(os.path.relpath(path)) for path in (config, *paths))
    split = '' if record.split == 'test' else f' --split {record.split}'
    return f'tools/test.py {files} --calibration{split}'


def _remark(metrics: Mapping, key: str) -> str:
    """Return the interval of a metric, and what that of a gap says; nothing without one."""
    if f'{key}{keys.INTERVAL[0]}' not in metrics:
        return ''
    low, high = (metrics[f'{key}{end}'] for end in keys.INTERVAL)
    text = f'interval {number(key, low).removesuffix(" %")} to {number(key, high)}'
    if key != keys.GAP:
        return text
    if low > 0:
        verdict = 'over-confident'
    elif high < 0:
        verdict = 'under-confident'
    else:
        verdict = 'not told from 0'
    return f'{verdict}; {text}'


def measured_gap(statistics: CalibrationStatistics) -> dict[str, float]:
    """Return the gap between confidence and accuracy, with its interval where images are known."""
    found = {keys.GAP: gap(statistics.narrow_bins).item()}
    if statistics.image_bins is None:
        return found
    bins = statistics.image_bins
    ends = interval_values(['gap'], bins, bins.new_zeros(len(bins), 2), coverage=0.95)
    return found | {f'{keys.PREFIX}{name}': end for name, end in ends.items()}


def _heading(record: Record) -> str:
    parts = [record.experiment, model_label(record.model, experiment='').strip()]
    samples = record.evaluation.get('dataset', {}).get('samples')
    parts.append(f'{record.split} split' + (f', {samples:,} samples' if samples else ''))
    if record.limit:
        of_what = '' if record.evaluation['limit'] else 'the checkpoint of a '
        parts.append(f'{of_what}SMOKE RUN with --limit {record.limit}')
    return '; '.join(filter(None, parts))


def number(key: str, value: object) -> str:
    """Return a metric's value with its unit."""
    if not isinstance(value, Real):
        return str(value)
    sign = '+' if key == keys.GAP and value >= 0 else ''
    return sign + keys.number_text(value, key) + (' %' if keys.is_percentage(key) else '')
