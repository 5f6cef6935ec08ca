"""Measure predictions in files, say what to do, and fit a scaling to them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from mmcalib.calibration.calibrate import calibrate
from mmcalib.cli.measure import MeasureOptions
from mmcalib.errors import UserError, as_user_errors
from mmcalib.files import check_writable, whole_file
from mmcalib.metrics.evaluate import evaluate
from mmcalib.metrics.measure import measure
from mmcalib.metrics.measured import Measured
from mmcalib.metrics.requirements import parse_requirement, unmet
from mmcalib.metrics.streaming import DEFAULT_METRICS, TWO_CLASS_METRICS
from mmcalib.predictions.files import StoredPredictions, check_kind, read_predictions

DIAGRAM_SUFFIXES = ('.png', '.pdf', '.svg')
BATCH_SIZE = 4096


def measure_files(options: MeasureOptions) -> int:
    """Print the metrics of predictions in files, and return 1 if a requirement is not met."""
    requirements = [parse_requirement(text) for text in options.require]
    check_outputs(options)
    stored = read_predictions(
        options.files,
        predictions=options.predictions,
        labels=options.labels,
        groups=options.groups,
        are_logits=options.logits,
    )
    check_kind(stored)
    metrics = list(options.metrics or usual_metrics(stored))
    metrics += dict.fromkeys(
        requirement.metric for requirement in requirements if requirement.metric not in metrics
    )
    measured = measure_stored(stored, metrics, options)
    print(measured)
    write_measurement(options, measured)
    if options.calibrate is None:
        for sentence in advice(measured):
            print(sentence)
    else:
        calibrate_stored(stored, options)
    failures = unmet(requirements, measured)
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def check_outputs(options: MeasureOptions) -> None:
    """Refuse files that cannot be written, before hours of a fit."""
    for path in (options.json, options.diagram, options.out):
        if path is not None:
            check_writable(path)
    if options.diagram is not None and Path(options.diagram).suffix not in DIAGRAM_SUFFIXES:
        raise UserError(f'--diagram {options.diagram}: name a {", ".join(DIAGRAM_SUFFIXES)} file')


def usual_metrics(stored: StoredPredictions) -> tuple[str, ...]:
    """Return the metrics where none are named: the usual ones and the gap."""
    return (*(TWO_CLASS_METRICS if are_of_two_classes(stored) else DEFAULT_METRICS), 'gap')


def are_of_two_classes(stored: StoredPredictions) -> bool:
    """Return whether the probability of class 1 tells that of the only other class."""
    return are_sigmoids(stored) or stored.values.shape[1] == 2


def are_sigmoids(stored: StoredPredictions) -> bool:
    """Return whether each prediction is that of one class of two, or of several labels."""
    values = stored.values
    return values.ndim == 1 or values.shape[1] == 1 or values.shape == stored.labels.shape


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


def calibrate_stored(stored: StoredPredictions, options: MeasureOptions) -> None:
    """Fit a scaling to stored predictions, as if a model had made them, and write it."""
    values = stored.values if stored.are_logits else logits_from_probs(stored)
    with as_user_errors():
        calibrated = calibrate(
            nn.Identity(),
            batches(values, stored.labels),
            method=options.calibrate,
            groups=stored.groups,
            ignore_index=options.ignore_index,
        )
    calibrated.placement = None  # There is no model that a scaling goes into.
    print(f'\n{calibrated}')
    if options.out is None:
        return
    if calibrated.scaler is None:
        print(f'No scaling is chosen, so {options.out} is not written.', file=sys.stderr)
        return
    calibrated.scaler.save(options.out)
    argument = 'logits'
    if not stored.are_logits:
        argument = 'log(p / (1 - p))' if are_sigmoids(stored) else 'log(probs)'
    print(
        f'Scaling written to {options.out}: '
        f"mmcalib.posthoc.load_scaler('{options.out}').predict_proba({argument})",
        file=sys.stderr,
    )


def logits_from_probs(stored: StoredPredictions) -> np.ndarray:
    """Return logits whose softmax, or sigmoid, probabilities are.

    Raises:
        UserError: For probabilities of 0, whose logarithm is infinite, or of 1 of a sigmoid.
    """
    probs = np.asarray(stored.values, dtype=np.float64)
    are_of_sigmoids = are_sigmoids(stored)
    is_end = (probs == 0) | (probs == 1) if are_of_sigmoids else probs == 0
    if is_end.any():
        inside = probs[(probs > 0) & (probs < 1)]
        least = inside.min() / 2 if len(inside) else 0.01
        ends = '0 or 1' if are_of_sigmoids else '0'
        raise UserError(
            f'{int(is_end.sum()):,} of {probs.size:,} probabilities are {ends}, and have no finite '
            f'logit: give logits, or put {least:.2g}, half of the smallest positive one, in place '
            'of 0, here and wherever the scaling is used'
        )
    return np.log(probs) - np.log1p(-probs) if are_of_sigmoids else np.log(probs)


def write_measurement(options: MeasureOptions, measured: Measured) -> None:
    """Write the numbers and the diagram that the options ask for."""
    if options.json is not None:
        record = {
            'metrics': measured.to_dict(),
            'coverage': measured.coverage,
            'units': measured.units,
            'notes': measured.sentences(),
        }
        with whole_file(options.json) as temporary:
            text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
            temporary.write_text(f'{text}\n', encoding='utf-8')
    if options.diagram is not None:
        from mmcalib.visualization.reliability import reliability_diagram  # 0.7 s of matplotlib

        with whole_file(options.diagram) as temporary:
            reliability_diagram(measured).savefig(temporary)
        print(f'Diagram written to {options.diagram}', file=sys.stderr)
