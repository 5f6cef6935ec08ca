"""Measure predictions in files, say what to do, and fit a scaling to them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from mmcalib.calibration.calibrate import calibrate
from mmcalib.cli.measure import MeasureOptions
from mmcalib.errors import UserError, as_user_errors
from mmcalib.files import check_writable, whole_file, write_csv, write_json
from mmcalib.metrics.class_rates import LEAST_POINTS
from mmcalib.metrics.counts import MOST_CLASSES
from mmcalib.metrics.evaluate import evaluate
from mmcalib.metrics.measure import measure
from mmcalib.metrics.measured import Measured
from mmcalib.metrics.measurement import DEFAULT_METRICS, TWO_CLASS_METRICS
from mmcalib.metrics.requirements import (
    OF_PROBABILITY,
    Requirement,
    gap_warning,
    misses_probability,
    parse_requirement,
    probability_warning,
    unmet,
    with_required,
)
from mmcalib.posthoc.methods import load_scaler
from mmcalib.posthoc.per_label import ScalerPerLabel
from mmcalib.predictions.files import (
    StoredPredictions,
    check_kind,
    columns_of_classes,
    open_columns,
    read_predictions,
)
from mmcalib.tensors import check_probabilities, check_range

DIAGRAM_SUFFIXES = ('.png', '.pdf', '.svg')
BATCH_SIZE = 4096


def measure_files(options: MeasureOptions) -> int:
    """Print the metrics of predictions in files.

    Returns:
        The exit status: 1 if a requirement is not met, or no scaling is chosen for a file.
    """
    requirements = [parse_requirement(text) for text in options.require or ()]
    check_outputs(options)
    is_measured = requirements or options.json or options.diagram or options.metrics
    stored = read_predictions(
        options.files,
        predictions=options.predictions,
        labels=options.labels,
        groups=options.groups,
        are_logits=options.logits,
        may_lack_labels=options.scaler is not None and options.out is not None and not is_measured,
    )
    check_kind(stored)
    if options.scaler is not None:
        stored = scale_stored(stored, options.scaler)
        write_scaled(stored, options)
        if stored.labels is None:
            return 0
    metrics = with_required(options.metrics or usual_metrics(stored), requirements)
    lacks_probability = stored.are_of_two_classes and misses_probability(requirements)
    if lacks_probability:
        metrics = list(dict.fromkeys([*metrics, *OF_PROBABILITY]))
    measured = measure_stored(stored, metrics, options)
    print(measured)
    write_measurement(options, measured, requirements)
    open_side = gap_warning(requirements)
    if open_side is not None:
        print(open_side, file=sys.stderr)
    if lacks_probability:
        print(probability_warning(measured), file=sys.stderr)
    if options.calibrate is None:
        for sentence in advice(measured, stored, options):
            print(sentence)
        is_written = True
    else:
        is_written = calibrate_stored(stored, options)
    failures = unmet(requirements, measured)
    for failure in failures:
        print(failure, file=sys.stderr)
    return 0 if is_written and not failures else 1


def check_outputs(options: MeasureOptions) -> None:
    """Refuse files that cannot be written, before hours of a fit, and those that would be lost."""
    inputs = [*options.files, *filter(None, [options.scaler])]
    outputs = list(filter(None, [options.json, options.diagram, options.out]))
    for path in outputs:
        check_writable(path, inputs)
    files = {os.path.realpath(path) for path in outputs}
    if len(files) < len(outputs):
        raise UserError(f'--json, --diagram and --out name one file: {", ".join(outputs)}')
    if options.json is not None and is_scaler(options.json):
        raise UserError(
            f'--json {options.json} is a scaling, which would be lost: name another file'
        )
    if options.diagram is not None and Path(options.diagram).suffix not in DIAGRAM_SUFFIXES:
        raise UserError(f'--diagram {options.diagram}: name a {", ".join(DIAGRAM_SUFFIXES)} file')


def is_scaler(path: str) -> bool:
    """Return whether a file has a scaling."""
    try:
        load_scaler(path)
    except (OSError, ValueError):
        return False
    return True


def usual_metrics(stored: StoredPredictions) -> tuple[str, ...]:
    """Return the metrics where none are named: the usual ones, the gap, and that of the rates."""
    if stored.are_of_two_classes:
        return (*TWO_CLASS_METRICS, 'gap', 'rate_gap')
    # Intervals keep the sums of each class and row.
    if stored.values.shape[1] <= MOST_CLASSES:
        return (*DEFAULT_METRICS, 'gap', 'rate_gap')
    return (*DEFAULT_METRICS, 'gap')


def measure_stored(
    stored: StoredPredictions, metrics: list[str], options: MeasureOptions
) -> Measured:
    """Return metrics of stored predictions with their intervals."""
    shared = {
        'interval': options.interval,
        'groups': stored.groups,
        'ignore_index': options.ignore_index,
        'num_bins': options.bins,
    }
    with as_user_errors():
        if stored.are_logits:
            loader = batches(stored.values, stored.labels)
            measured = evaluate(nn.Identity(), loader, metrics, **shared)
        else:
            measured = measure(stored.values, stored.labels, metrics, **shared)
    measured.class_names = shown_names(stored)
    return measured


def shown_names(stored: StoredPredictions) -> Sequence[str]:
    """Return the names of the classes for sentences; none where they are numbers."""
    return () if all(name.isdigit() for name in stored.classes) else stored.classes


def batches(values: np.ndarray, labels: np.ndarray) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return arrays as batches of a loader."""
    pairs = zip(
        torch.as_tensor(values).split(BATCH_SIZE),
        torch.as_tensor(labels).split(BATCH_SIZE),
        strict=True,
    )
    return list(pairs)


def advice(measured: Measured, stored: StoredPredictions, options: MeasureOptions) -> list[str]:
    """Return what to do about confidences that are too high or too low on average."""
    low = measured.get('gap_low')
    high = measured.get('gap_high')
    if not isinstance(low, float) or not isinstance(high, float) or low <= 0 <= high:
        return []
    if len(np.unique(stored.labels[stored.labels != options.ignore_index])) == 1:
        return []  # There is no scaling to fit, and confidences of one class tell little.
    direction = 'high' if low > 0 else 'low'
    sentence = f'Confidences are too {direction} by {abs(measured["gap"]):.2f} points on average'
    if abs(measured['gap']) < LEAST_POINTS:
        return [f'{sentence}, which is little: keep the model.']
    if options.scaler is not None:
        return [f'{sentence} after {options.scaler}: fit the scaling to data like these.']
    return [
        f'{sentence}: fit a scaling to held-out predictions, --calibrate METHOD --out scaler.json, '
        'or to the model, mmcalib.calibrate(model, loader).'
    ]


def calibrate_stored(stored: StoredPredictions, options: MeasureOptions) -> bool:
    """Fit a scaling to stored predictions, as if a model had made them, and write it.

    Returns:
        Whether the file that is wanted is written.
    """
    logits = stored.logits()
    with as_user_errors():
        calibrated = calibrate(
            nn.Identity(),
            batches(logits, stored.labels),
            method=options.calibrate,
            groups=stored.groups,
            ignore_index=options.ignore_index,
        )
    # There is no model that the scaling goes into.
    calibrated = replace(calibrated, placement=None, class_names=shown_names(stored))
    print(f'\n{calibrated}')
    if options.out is None:
        return True
    if calibrated.scaler is None:
        print(f'No scaling is chosen, so {options.out} is not written.', file=sys.stderr)
        return False
    calibrated.scaler.save(options.out, stored.classes)
    argument = 'logits'
    if not stored.are_logits:
        argument = 'log(p / (1 - p))' if stored.are_of_sigmoids else 'log(probs)'
    print(
        f'Scaling written to {options.out}. Apply it by mmcalib measure FILE --scaler '
        f"{options.out} --out NEW.npz, or mmcalib.posthoc.load_scaler('{options.out}')"
        f'.predict_proba({argument})',
        file=sys.stderr,
    )
    return True


def check_values(stored: StoredPredictions, *, several_labels: bool) -> None:
    """Refuse values that are no predictions, as a measurement does, where there may be no labels.

    Args:
        stored: The predictions.
        several_labels: Whether each column is of a label of its own.
    """
    values = torch.as_tensor(stored.values)
    if stored.are_logits:
        num_nan = int(values.isnan().sum())
        if num_nan:
            raise UserError(f'{num_nan:,} of {values.numel():,} logits are NaN')
    elif several_labels or stored.are_of_sigmoids:
        check_range(values, 'the predictions')
    else:
        check_probabilities(values.T, 'the predictions')


def scale_stored(stored: StoredPredictions, path: str) -> StoredPredictions:
    """Return the probabilities of stored predictions by the scaling in a file.

    Columns that have names come in the order of the classes that the scaling was fitted to.

    Raises:
        UserError: If the file is no scaling, or one of other classes.
    """
    scaler = load_scaler(path)
    is_per_label = isinstance(scaler, ScalerPerLabel)
    check_values(stored, several_labels=is_per_label)
    if stored.labels is not None and stored.are_of_several_labels != is_per_label:
        kinds = ('several labels', 'classes') if is_per_label else ('classes', 'several labels')
        raise UserError(f'{path} is a scaling of {kinds[0]}, and the predictions are of {kinds[1]}')
    fitted_classes = json.loads(Path(path).read_text('utf-8')).get('classes') or []
    if fitted_classes and stored.classes:
        order = columns_of_classes(fitted_classes, stored.classes)
        if order is None:
            raise UserError(
                f'{path} was fitted to the classes {", ".join(fitted_classes)}, and the '
                f'predictions are of {", ".join(stored.classes)}: give --predictions the '
                "columns of the classes that it was fitted to, in any order, one by one or as 'p_*'"
            )
        stored = stored.in_order(order)
    if is_per_label and stored.labels is None:  # The shape of labels says what values are.
        logits = stored._replace(labels=np.zeros(stored.values.shape)).logits()
    else:
        logits = stored.logits()
    if logits.ndim == 1:
        logits = logits[:, None]
    with as_user_errors():
        probs = scaler.predict_proba(logits)
    if not is_per_label and logits.shape[1] == 1:
        probs = probs[:, 1]
    return stored._replace(values=probs, are_logits=False)


def write_scaled(stored: StoredPredictions, options: MeasureOptions) -> None:
    """Write scaled probabilities as this command reads them."""
    if options.out is None:
        return
    if options.out.endswith('.csv'):
        write_table(stored, options.files, options.out)
    else:
        write_archive(stored, options.out)
    print(f'Calibrated probabilities written to {options.out}', file=sys.stderr)


def write_table(stored: StoredPredictions, files: Sequence[str], out: str) -> None:
    """Write the table that was read with a column more for each one of scaled probabilities.

    Raises:
        UserError: If it was no table, or has such a column.
    """
    if Path(files[0]).suffix.lower() not in ('.csv', '.parquet'):
        raise UserError(f'--out {out}: {files[0]} is no table whose rows it could have: name .npz')
    table = dict(open_columns(files[0]).arrays)
    values = stored.values.reshape(len(stored.values), -1)
    for name, column in zip(stored.columns, values.T, strict=True):
        new_name = f'calibrated_{name}'
        if new_name in table:
            raise UserError(f'{files[0]} has the column {new_name} already: leave it out')
        table[new_name] = column
    columns = [[name, *column.tolist()] for name, column in table.items()]
    write_csv(out, zip(*columns, strict=True), line_end='\n')


def write_archive(stored: StoredPredictions, out: str) -> None:
    """Write scaled probabilities with their labels and groups."""
    arrays = {'probs': stored.values}
    if stored.labels is not None:
        arrays['labels'] = stored.labels
    if stored.groups is not None:
        arrays['groups'] = np.array(stored.groups)
    with whole_file(out) as temporary, open(temporary, 'wb') as file:
        np.savez(file, **arrays)


def write_measurement(
    options: MeasureOptions, measured: Measured, requirements: list[Requirement]
) -> None:
    """Write the numbers and the diagram that the options ask for."""
    if options.json is not None:
        record = {
            'metrics': measured.to_dict(),
            'coverage': measured.coverage,
            'units': measured.units,
            'notes': measured.sentences(),
            'requirements': [requirement.to_dict(measured) for requirement in requirements],
        }
        write_json(options.json, record)
    if options.diagram is not None:
        from mmcalib.visualization.reliability import reliability_diagram  # 0.7 s of matplotlib

        with whole_file(options.diagram) as temporary:
            reliability_diagram(measured).savefig(temporary)
        print(f'Diagram written to {options.diagram}', file=sys.stderr)
