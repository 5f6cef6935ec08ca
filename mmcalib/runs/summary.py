"""The lines at the end of a test: its figures, and the model and data that they belong to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from shlex import quote

from mmcalib.metrics import CalibrationStatistics, metric_text
from mmcalib.metrics.calibration_errors import gap
from mmcalib.metrics.class_rates import LEAST_POINTS, ClassRates
from mmcalib.metrics.intervals import interval_values
from mmcalib.runs.labels import model_label
from mmcalib.runs.record import Record, checkpoint_paths, is_ensemble
from mmcalib.tables import TextTable
from mmcalib.texts import command_text

NO_VALUES = 'The test has no values, since no metric of test_evaluator has any.'

Row = tuple[str, str, str]  # name, value and remark of a metric


def summary_lines(record: Record, statistics: CalibrationStatistics | None = None) -> list[str]:
    """Return the lines of a small table of a test's figures.

    Args:
        record: Record of the test.
        statistics: Statistics of the test's calibration metric; None if it had none.
    """
    metrics = dict(record.metrics)
    count_remark = ''
    if statistics is not None and statistics.num_predictions:
        if metric_text.GAP not in metrics:
            metrics |= measured_gap(statistics)
        count, correct, confidence = statistics.narrow_bins.sum(dim=1).tolist()
        metrics.setdefault(metric_text.CONFIDENCE, 100 * confidence / count)
        has_accuracy = any(key.startswith(metric_text.TOP1) for key in metrics)
        if not has_accuracy and metric_text.ACCURACY not in metrics:
            metrics[metric_text.ACCURACY] = 100 * correct / count
            count_remark = f'of {statistics.num_predictions:,} predictions'
    toolbox_rows, calibration_rows = metric_rows(metrics, record.num_classes)
    if metric_text.ACCURACY in calibration_rows:
        name, value, remark = calibration_rows[metric_text.ACCURACY]
        remark = remark or count_remark
        calibration_rows[metric_text.ACCURACY] = (name, value, remark)
        # The accuracy of all predictions has a name of its own in both toolboxes.
        for key in (metric_text.TOP1, metric_text.AACC):
            if key in toolbox_rows and toolbox_rows[key][1] == value:
                toolbox_rows[key] = (key, value, remark)
                calibration_rows.pop(metric_text.ACCURACY, None)
    if metric_text.CONFIDENCE in calibration_rows:
        _, value, remark = calibration_rows[metric_text.CONFIDENCE]
        calibration_rows[metric_text.CONFIDENCE] = ('mean confidence', value, remark)
    rows = list(toolbox_rows.values())
    for key in (metric_text.ACCURACY, metric_text.CONFIDENCE, metric_text.GAP):
        if key in calibration_rows:
            rows.append(calibration_rows.pop(key))
    rows += calibration_rows.values()
    if not rows:
        return [heading(record), NO_VALUES]
    table = TextTable(headings=(), rows=rows, alignment='lrl')
    return [heading(record), *table.write().splitlines(), *rate_sentences(record)]


def rate_sentences(record: Record) -> list[str]:
    """Return which classes a tested model predicts more or less often than they occur."""
    rates = record.class_rates
    if rates is None:
        return []
    remedy = None
    if is_for_other_frequencies(record.model, rates):
        remedy = 'the scaling is shifted to other frequencies of the classes than these data have'
    elif has_shift(record.model):
        remedy = 'the scaling has not seen these frequencies, so fit it to data like those in use'
    names = () if rates.has_one_rate else record.rates['calibration']['classes']
    return rates.sentences(remedy, names=names)


def is_for_other_frequencies(model: Mapping, rates: ClassRates) -> bool:
    """Return whether a scaling of a model was shifted to frequencies that tested data lack."""
    for member in model['members']:
        prior = (member['calibration'] or {}).get('class_prior')
        if prior is None or len(prior) != len(rates.frequencies):
            continue
        for share, frequency in zip(prior, rates.frequencies, strict=True):
            if abs(100 * share - frequency) > LEAST_POINTS:
                return True
    return False


def has_shift(model: Mapping) -> bool:
    """Return whether all members of a model have a scaling that shifts the log-odds of classes."""
    calibrations = [member['calibration'] for member in model['members']]
    if not all(calibrations):
        return False
    from mmcalib.posthoc.methods import SCALERS  # scikit-learn takes 0.8 s to import

    for calibration in calibrations:
        scalers = [SCALERS[name]() for name in calibration['methods'] if name in SCALERS]
        if not any(scaler.has_shift for scaler in scalers):
            return False
    return True


def metric_rows(
    metrics: Mapping, num_classes: int | None = None
) -> tuple[dict[str, Row], dict[str, Row]]:
    """Return the rows of the toolboxes' metrics, and those of ours, by their keys.

    Of two classes, the error of P(y = 1) is the first of ours.
    """
    interval_keys = {f'{key}{end}' for key in metrics for end in metric_text.INTERVAL}
    toolbox_rows = {}
    calibration_rows = {}
    keys_in_order = [*metrics]
    if num_classes == 2 and metric_text.CLASSWISE_ECE in metrics:
        keys_in_order.remove(metric_text.CLASSWISE_ECE)
        keys_in_order.insert(0, metric_text.CLASSWISE_ECE)
    for key in keys_in_order:
        text = value_text(key, metrics[key])
        if not key.startswith(metric_text.PREFIX):
            toolbox_rows[key] = (key, text, '')
        elif key not in interval_keys:
            name = metric_text.metric_name(key, num_classes=num_classes)
            calibration_rows[key] = (name, text, interval_remark(metrics, key))
    return toolbox_rows, calibration_rows


def measured_gap(statistics: CalibrationStatistics) -> dict[str, float]:
    """Return the gap between confidence and accuracy, with its interval where images are known."""
    metrics = {metric_text.GAP: gap(statistics.narrow_bins).item()}
    tables = statistics.unit_tables()
    if tables is not None:
        ends = interval_values(['gap'], tables, level=0.95)
        for name, end in ends.items():
            metrics[f'{metric_text.PREFIX}{name}'] = end
    return metrics


def interval_remark(metrics: Mapping, key: str) -> str:
    """Return the interval of a metric, and what that of a gap says; nothing without one."""
    low_key, high_key = (f'{key}{end}' for end in metric_text.INTERVAL)
    if low_key not in metrics:
        return ''
    low = metrics[low_key]
    high = metrics[high_key]
    text = f'interval {value_text(key, low).removesuffix(" %")} to {value_text(key, high)}'
    if key != metric_text.GAP:
        return text
    if low > 0:
        verdict = 'over-confident'
    elif high < 0:
        verdict = 'under-confident'
    else:
        verdict = 'not told from 0'
    return f'{verdict}; {text}'


def value_text(key: str, value: object) -> str:
    """Return a metric's value with its unit."""
    if not isinstance(value, Real):
        return str(value)
    text = metric_text.number_text(value, key)
    if key == metric_text.GAP and value >= 0:
        text = f'+{text}'
    return f'{text} %' if metric_text.is_percentage(key) else text


def heading(record: Record) -> str:
    """Return what was tested, and on what."""
    parts = [record.experiment, model_label(record.model, experiment='').strip()]
    samples = record.evaluation.get('dataset', {}).get('samples')
    parts.append(f'{record.split} split')
    if samples:
        parts[-1] += f', {samples:,} samples'
    if record.evaluation.get('limit'):
        parts.append(f'SMOKE RUN with --limit {record.limit}')
    elif record.limit:
        parts.append(f'the checkpoint of a SMOKE RUN with --limit {record.limit}')
    return '; '.join(part for part in parts if part)


def measuring_command(config: str, record: Record) -> str:
    """Return the command that measures the calibration of a model that was tested without it."""
    paths = checkpoint_paths(record.model)
    if is_ensemble(record.model) or not Path(paths[0]).is_file():
        return f'the same call of {command_text("test")} with --calibration'
    files = ' '.join(quote(os.path.relpath(path)) for path in (config, *paths))
    split = '' if record.split == 'test' else f' --split {record.split}'
    return f'{command_text("test")} {files} --calibration{split}'
