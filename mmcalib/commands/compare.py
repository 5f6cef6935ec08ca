"""Compare the predictions of two models in files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from mmcalib.cli.compare import CompareOptions
from mmcalib.errors import UserError, as_user_errors
from mmcalib.files import check_writable, write_json
from mmcalib.metrics.compare import compare
from mmcalib.metrics.measurement import DEFAULT_METRICS, TWO_CLASS_METRICS
from mmcalib.metrics.requirements import (
    OF_PROBABILITY,
    misses_probability,
    parse_requirement,
    probability_warning,
    unmet,
    with_required,
)
from mmcalib.predictions.files import (
    GROUPS,
    LABELS,
    PROBS,
    StoredPredictions,
    check_kind,
    open_columns,
    read_predictions,
)


def compare_files(options: CompareOptions) -> int:
    """Print the differences of two models' metrics, and return 1 if a requirement is not met."""
    requirements = [parse_requirement(text) for text in options.require or ()]
    if options.json is not None:
        check_writable(options.json, options.files)
    a, b = read_sides(options)
    for side in (a, b):
        check_kind(side)
    usual = TWO_CLASS_METRICS if a.are_of_two_classes else DEFAULT_METRICS
    metrics = with_required(options.metrics or usual, requirements)
    lacks_probability = a.are_of_two_classes and misses_probability(requirements)
    if lacks_probability:
        metrics = list(dict.fromkeys([*metrics, *OF_PROBABILITY]))
    with as_user_errors():
        comparison = compare(
            a.probabilities(),
            b.probabilities(),
            a.labels,
            metrics,
            interval=options.interval,
            groups=a.groups,
            num_bins=options.bins,
            ignore_index=options.ignore_index,
        )
    print(comparison)
    if options.json is not None:
        verdicts = [requirement.to_dict(comparison) for requirement in requirements]
        write_json(options.json, comparison.to_dict() | {'requirements': verdicts})
    if lacks_probability:
        print(f'Of B − A: {probability_warning(comparison)}', file=sys.stderr)
    failures = unmet(requirements, comparison)
    for failure in failures:
        print(f'Of B − A, {failure}', file=sys.stderr)
    return 1 if failures else 0


def read_sides(options: CompareOptions) -> tuple[StoredPredictions, StoredPredictions]:
    """Return the predictions of A and of B, of the same labels and groups."""
    names = {
        'predictions': options.predictions,
        'labels': options.labels,
        'groups': options.groups,
        'are_logits': options.logits,
    }
    file_a, *others = options.files
    if not others:
        raise UserError(f'compare takes the files of two models, got {file_a} alone')
    file_b, *rest = others
    if Path(file_a).suffix.lower() == '.npy':
        a = read_predictions([file_a, *rest], **names)
        b = read_predictions([file_b, *rest], **names)
        return a, b
    if rest:
        raise UserError(
            f'compare takes the files of two models, got {len(options.files)}: only .npy files '
            'have their labels in another one'
        )
    a, b = (read_predictions([file], **names_in(file, names)) for file in (file_a, file_b))
    if not np.array_equal(a.labels, b.labels):
        raise UserError(
            f'{file_a} and {file_b} have other labels: compare predictions of the same images, in '
            'the same order'
        )
    if a.groups != b.groups:
        raise UserError(f'{file_a} and {file_b} have other groups')
    return a, b


def names_in(file: str, names: dict[str, Any]) -> dict[str, Any]:
    """Return the names that one file has: an .npz file of ``measure --out`` has its own."""
    if not names['predictions'] or Path(file).suffix.lower() != '.npz':
        return names
    keys = set(open_columns(file).arrays)
    is_of_measure = PROBS in keys and keys <= {PROBS, LABELS, GROUPS}
    if not is_of_measure or PROBS in names['predictions']:
        return names
    groups = GROUPS if names['groups'] and GROUPS in keys else None
    return {'predictions': (), 'labels': (), 'groups': groups, 'are_logits': False}
