"""Measure predictions in files, say what to do, and fit a scaling to them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from mmcalib.calibration.calibrate import calibrate
from mmcalib.cli.measure import MeasureOptions
from mmcalib.errors import UserError, as_user_errors
from mmcalib.files import check_writable, whole_file, write_json
from mmcalib.metrics.evaluate import evaluate
from mmcalib.metrics.measure import measure
from mmcalib.metrics.measured import Measured
from mmcalib.metrics.measurement import DEFAULT_METRICS, TWO_CLASS_METRICS
from mmcalib.metrics.requirements import parse_requirement, unmet, with_required
from mmcalib.predictions.files import StoredPredictions, check_kind, read_predictions

DIAGRAM_SUFFIXES = ('.png', '.pdf', '.svg')
BATCH_SIZE = 4096


def measure_files(options: MeasureOptions) -> int:
    """Print the metrics of predictions in files.

    Returns:
        The exit status: 1 if a requirement is not met, or no scaling is chosen for a file.
    """
    requirements = [parse_requirement(text) for text in options.require or ()]
    check_outputs(options)
    stored = read_predictions(
        options.files,
        predictions=options.predictions,
        labels=options.labels,
        groups=options.groups,
        are_logits=options.logits,
    )
    check_kind(stored)
    metrics = with_required(options.metrics or usual_metrics(stored), requirements)
    measured = measure_stored(stored, metrics, options)
    print(measured)
    write_measurement(options, measured)
    if options.calibrate is None:
        for sentence in advice(measured):
            print(sentence)
        is_written = True
    else:
        is_written = calibrate_stored(stored, options)
    failures = unmet(requirements, measured)
    for failure in failures:
        print(failure, file=sys.stderr)
    return 0 if is_written and not failures else 1


def check_outputs(options: MeasureOptions) -> None:
    """Refuse files that cannot be written, before hours of a fit."""
    for path in (options.json, options.diagram, options.out):
        if path is not None:
            check_writable(path)
    if options.diagram is not None and Path(options.diagram).suffix not in DIAGRAM_SUFFIXES:
        raise UserError(f'--diagram {options.diagram}: name a {", ".join(DIAGRAM_SUFFIXES)} file')


def usual_metrics(stored: StoredPredictions) -> tuple[str, ...]:
    """Return the metrics where none are named: the usual ones and the gap."""
    usual = TWO_CLASS_METRICS if stored.are_of_two_classes else DEFAULT_METRICS
    return (*usual, 'gap')


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
            return evaluate(nn.Identity(), batches(stored.values, stored.labels), metrics, **shared)
        return measure(stored.values, stored.labels, metrics, **shared)


def batches(values: np.ndarray, labels: np.ndarray) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return arrays as batches of a loader."""
    pairs = zip(
        torch.as_tensor(values).split(BATCH_SIZE),
        torch.as_tensor(labels).split(BATCH_SIZE),
        strict=True,
    )
    return list(pairs)


def advice(measured: Measured) -> list[str]:
    """Return what to do about confidences that are too high or too low on average."""
    low = measured.get('gap_low')
    high = measured.get('gap_high')
    if not isinstance(low, float) or not isinstance(high, float) or low <= 0 <= high:
        return []
    direction = 'high' if low > 0 else 'low'
    return [
        f'Confidences are too {direction} by {abs(measured["gap"]):.2f} points on average: fit a '
        'scaling to held-out predictions, --calibrate METHOD --out scaler.json, or to the model, '
        'mmcalib.calibrate(model, loader).'
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
    calibrated = replace(calibrated, placement=None)
    print(f'\n{calibrated}')
    if options.out is None:
        return True
    if calibrated.scaler is None:
        print(f'No scaling is chosen, so {options.out} is not written.', file=sys.stderr)
        return False
    calibrated.scaler.save(options.out)
    argument = 'logits'
    if not stored.are_logits:
        argument = 'log(p / (1 - p))' if stored.are_of_sigmoids else 'log(probs)'
    print(
        f'Scaling written to {options.out}: '
        f"mmcalib.posthoc.load_scaler('{options.out}').predict_proba({argument})",
        file=sys.stderr,
    )
    return True


def write_measurement(options: MeasureOptions, measured: Measured) -> None:
    """Write the numbers and the diagram that the options ask for."""
    if options.json is not None:
        record = {
            'metrics': measured.to_dict(),
            'coverage': measured.coverage,
            'units': measured.units,
            'notes': measured.sentences(),
        }
        write_json(options.json, record)
    if options.diagram is not None:
        from mmcalib.visualization.reliability import reliability_diagram  # 0.7 s of matplotlib

        with whole_file(options.diagram) as temporary:
            reliability_diagram(measured).savefig(temporary)
        print(f'Diagram written to {options.diagram}', file=sys.stderr)
