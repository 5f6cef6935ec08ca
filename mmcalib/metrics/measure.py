"""All metrics of arrays in one call: numpy, torch or lists; no Runner, no config."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmcalib.metrics.calibration_errors import adaptive_error
from mmcalib.metrics.counts import Counts, Predictions, by_unit, of_confidences, of_probabilities
from mmcalib.metrics.definitions import metric_of
from mmcalib.metrics.intervals import check_interval
from mmcalib.metrics.protocols import PROTOCOLS
from mmcalib.metrics.strata import stratum_figures
from mmcalib.options import check_choice, check_integer, check_number
from mmcalib.predictions.arrays import (
    MASKED,
    A,
    Array,
    axes_look_alike,
    floats_of,
    integers_of,
    labelled_rows,
    mark_masked,
    tensor_of,
    valid_labels,
)
from mmcalib.predictions.loader import group_numbers
from mmcalib.tensors import (
    SUM_TOLERANCE,
    at_least_single,
    check_probabilities,
    check_range,
    smallest_probability,
)

MEASURED = ('ECE', 'AECE', 'NLL', 'Brier', 'accuracy')
# A value alone, of several labels one of each; or these by name.
Values = float | np.ndarray | dict[str, float | np.ndarray]


def measure(
    probs: A = None,
    labels: A = None,
    metrics: str | Sequence[str] = MEASURED,
    *,
    conf: A = None,
    correct: A = None,
    num_bins: int = 15,
    ignore_index: int | None = None,
    interval: float | None = None,
    groups: Sequence[Hashable] | None = None,
) -> Values:
    """Return metrics of probabilities by the names that ``CalibrationMetric`` has.

    In percent but for ``NLL`` and its parts, in nats, ``Brier`` and its parts, and the temperature;
    NaN of no predictions.

    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
    >>> {k: round(v, 3) for k, v in measure(probs, [0, 1, 1, 0], ['NLL', 'AURC']).items()}
    {'NLL': 0.747, 'AURC': 33.333}
    >>> measure(probs, [0, 1, 1, 0], 'accuracy')
    50.0
    >>> found = measure(probs, [0, 1, 1, 0], 'accuracy', interval=0.95)
    >>> {name: round(value, 1) for name, value in found.items()}
    {'accuracy': 50.0, 'accuracy_low': 0.0, 'accuracy_high': 100.0}
    >>> measure([[0.9, 0.8], [0.4, 0.3]], [[1, 0], [0, 0]], ['accuracy'])
    {'accuracy': array([100.,  50.]), 'accuracy_macro': 75.0}

    A probability of 0 counts in the NLL as the least that its type of float can hold: 87 nats in
    float32, and 17 in float16, which rounds all below 3e-8 to 0.

    Args:
        probs: ``(N, K)`` probabilities, or maps ``(N, K, H, W)`` and volumes ``(N, K, D, H, W)``
            of them; ``(N,)`` or K = 1 for the probability of class 1 of two; ``(N, L)`` for those
            of L labels, each of which is there or not.
        labels: ``(N,)``, ``(N, H, W)`` or ``(N, D, H, W)`` true classes, integers from 0 to K - 1;
            ``(N, L)`` of 0 and 1 for L labels: their values are ``(L,)``, and their mean without
            those that are NaN is ``ECE_macro`` and so on. A column ``(N, 1)`` is ``(N,)``. What
            numpy masks, here or in the other arrays, does not count.
        metrics: A name, for its value alone, or several.
        conf: Probabilities of the predicted classes, in place of `probs` and `labels`.
        correct: Booleans of the same shape, whether these were right.
        num_bins: B.
        ignore_index: The label of what to leave out, such as mmsegmentation's 255.
        interval: Coverage of intervals, such as 0.95, whose ends are ``ECE_low`` and ``ECE_high``
            and so on. They are those of ``CalibrationMetric(confidence_interval=…)``, over the N
            rows or images, for the same metrics.
        groups: N names of the groups that are independent, in place of the images: the patient of
            each slice, the video of each frame.

    Raises:
        TypeError: For what is no array of numbers, labels that are no integers, an `ignore_index`
            without labels, or `groups` without an `interval`.
        ValueError: For an unknown metric, values outside [0, 1], rows that do not sum to one,
            labels out of range, or arrays that do not fit each other.
    """
    names = check_options(metrics, interval, groups)
    options = dict(num_bins=num_bins, ignore_index=ignore_index)
    over = dict(interval=interval, groups=groups)
    if probs is not None and labels is not None:
        probs, labels = mark_masked(probs, labels)
    if conf is not None and correct is not None:
        conf, correct = mark_masked(conf, correct)
    if probs is not None and labels is not None and _are_several(probs, labels):
        columns = zip(tensor_of('probs', probs).T, tensor_of('labels', labels).T, strict=True)
        found = [measure(p, y, names, **options, **over) for p, y in columns]
        values = {name: np.array([each[name] for each in found]) for name in found[0]}
        if isinstance(metrics, str) and interval is None:
            return values[metrics]
        return values | {f'{name}_macro': _known_mean(values[name]) for name in names}
    found, _ = _predictions(names, probs, labels, conf, correct, **options)
    units, tables = [Counts.total([Counts.of(found, num_bins)], num_bins)], None
    if interval is not None:
        values = tensor_of('labels', correct if labels is None else labels).cpu()
        size = len(values)
        unit = torch.arange(size).repeat_interleave(values.numel() // max(size, 1))
        unit = unit[valid_labels(values.flatten(), ignore_index)]
        tables = by_unit(found, unit, size, num_bins)
    return figures(metrics, units, tables, **over)


def check_options(
    metrics: str | Sequence[str],
    interval: float | None,
    groups: Sequence[Hashable] | None,
    protocol: str = 'pooled',
) -> list[str]:
    """Return the names of metrics, or raise an error for options that do not fit each other."""
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    if interval is not None:
        check_interval('interval', interval, names)
    elif groups is not None:
        raise TypeError('groups are what an interval is over: give interval=0.95 too')
    if PROTOCOLS[check_choice('protocol', protocol, PROTOCOLS)].group and groups is not None:
        raise TypeError(f'protocol={protocol!r} has groups of its own: leave groups out')
    return names


def figures(
    metrics: str | Sequence[str],
    units: Sequence[Counts],
    tables: Sequence[Tensor] | None,
    *,
    interval: float | None,
    groups: Sequence[Hashable] | None,
    protocol: str = 'pooled',
) -> float | dict[str, float]:
    """Return metrics of counts, with intervals by the bins and sums of each image if wanted."""
    names, how = [metrics] if isinstance(metrics, str) else metrics, PROTOCOLS[protocol]
    whole = units[0] if len(units) == 1 else Counts.total(units)
    values = {name: how.value(name, units, whole) for name in names}
    if not whole.count:
        warnings.warn('no prediction is valid: metrics are NaN', stacklevel=3)
    if interval is None:
        return values[metrics] if isinstance(metrics, str) else values
    if groups is not None:
        number = group_numbers(groups, len(tables[0]))
        tables = [t.new_zeros(t.shape).index_add_(0, number, t) for t in tables]
    return values | how.intervals(names, units, tables, coverage=interval)


def _are_several(probs: Array, labels: Array) -> bool:
    """Return whether each row has several labels, whose probabilities do not sum to one."""
    probs, labels = tensor_of('probs', probs), tensor_of('labels', labels)
    if probs.ndim != 2 or probs.shape != labels.shape or probs.shape[1] < 2:
        return False
    whole = (labels != MASKED).all(dim=1).to(probs.device)
    if whole.any():  # The others may have any number where they are masked.
        probs = probs[whole]
    return not ((probs.sum(dim=1) - 1).abs() < SUM_TOLERANCE).all()


def _known_mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def expected_calibration_error(probs: A = None, labels: A = None, **options: Any) -> Values:
    r"""Return the expected calibration error, ECE, in percent.

    .. math:: \sum_b \frac{n_b}{n} \left| \mathrm{acc}_b - \mathrm{conf}_b \right|

    over bins of equal width, each (lo, hi]. NaN of no predictions. Options and errors are those of
    :func:`measure`.

    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
    >>> round(expected_calibration_error(probs, np.array([0, 1, 1, 0]), num_bins=2), 6)
    25.0
    >>> conf, correct = np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, False, True, False])
    >>> round(expected_calibration_error(conf=conf, correct=correct, num_bins=2), 6)
    25.0

    Source: Eq. 8 of the paper.
    """
    return measure(probs, labels, 'ECE', **options)


def adaptive_calibration_error(probs: A = None, labels: A = None, **options: Any) -> Values:
    """Return the calibration error over bins of equal count, AECE, in percent.

    The formula is that of :func:`expected_calibration_error`. Equal confidences are shared between
    bins in proportion, so no order of the predictions changes the number.

    >>> conf, correct = np.array([0.6, 0.7, 0.8, 0.9]), np.array([False, True, False, True])
    >>> round(adaptive_calibration_error(conf=conf, correct=correct, num_bins=2), 6)
    25.0
    """
    return measure(probs, labels, 'AECE', **options)


def classwise_adaptive_calibration_error(
    probs: Array,
    labels: Array,
    *,
    num_bins: int = 15,
    threshold: float | None = None,
    ignore_index: int | None = None,
) -> float:
    r"""Return the mean AECE of the probabilities of each class, in percent; TACE above a threshold.

    .. math:: \frac1K \sum_k \sum_b \frac{n_{bk}}{n} \left| \mathrm{freq}_{bk} - p_{bk} \right|

    over bins of equal count, and the K classes that have any probability above the threshold.

    >>> probs = np.array([[0.995, 0.005], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
    >>> round(classwise_adaptive_calibration_error(probs, np.array([0, 1, 1, 0]), num_bins=2), 6)
    27.375
    >>> labels, options = np.array([0, 1, 1, 0]), dict(num_bins=1, threshold=0.01)
    >>> round(classwise_adaptive_calibration_error(probs, labels, **options), 6)
    14.520833

    Source: Nixon et al., Measuring Calibration in Deep Learning, 2019.

    Args:
        threshold: From 0 to 1; probabilities of at most this are left out. None leaves none out.
    """
    check_integer('num_bins', num_bins)
    threshold = -1 if threshold is None else check_number('threshold', threshold, most=1.0)
    rows, labels, _ = _read(probs, labels, ignore_index)
    found = []
    for k, prob in enumerate(rows.unbind(1)):
        kept = prob > threshold
        counts = Counts.total([Counts.of(of_confidences(prob[kept], (labels == k)[kept]))])
        found.append(float(adaptive_error(counts.table, num_bins)) if kept.any() else math.nan)
    return _known_mean(np.array(found))


def predicted_class_calibration(
    probs: Array, labels: Array, *, num_bins: int = 15, ignore_index: int | None = None
) -> dict[str, np.ndarray]:
    """Return ECE, accuracy and mean confidence, in percent, and the count of each predicted class.

    Of the predictions of one class at a time: how far the network can be trusted that says so. NaN
    for classes that are never predicted. Arguments and errors are those of :func:`measure`.

    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    >>> found = predicted_class_calibration(probs, np.array([0, 1, 1]), num_bins=1)
    >>> {name: values.round(6).tolist() for name, values in found.items()}
    {'ECE': [35.0, 30.0], 'accuracy': [50.0, 100.0], 'confidence': [85.0, 70.0], 'count': [2, 1]}

    Returns:
        ``ECE``, ``accuracy``, ``confidence`` and ``count``, ``(K,)`` each.
    """
    options = dict(num_bins=num_bins, ignore_index=ignore_index)
    found, num_classes = _predictions([], probs, labels, **options)
    table = by_unit(found, found.predicted, num_classes, num_bins)[0].transpose(0, 1)
    return {n: np.array(v) for n, v in stratum_figures(table).items()}


def counts_of(names: Collection[str], *arrays: A, num_bins: int = 15, **options) -> Counts:
    """Return the counts of arrays that some metrics need."""
    found, _ = _predictions(names, *arrays, num_bins=num_bins, **options)
    return Counts.total([Counts.of(found, num_bins)], num_bins)


def _predictions(
    names: Collection[str],
    probs: A = None,
    labels: A = None,
    conf: A = None,
    correct: A = None,
    *,
    num_bins: int = 15,
    ignore_index: int | None = None,
) -> tuple[Predictions, int | None]:
    """Return what some metrics need of arrays, and the number of classes."""
    wanted = {metric_of(name).wanted for name in names}
    check_integer('num_bins', num_bins)
    given = [x is not None for x in (probs, labels, conf, correct)]
    if given not in ([True, True, False, False], [False, False, True, True]):
        raise TypeError('give probs and labels, or conf=… and correct=…')
    if probs is not None:
        rows, labels, smallest = _read(probs, labels, ignore_index)
        options = dict(num_bins=num_bins, wanted=wanted, smallest=smallest)
        return of_probabilities(rows, labels, **options), rows.shape[1]
    if ignore_index is not None:
        raise TypeError('ignore_index is a label: it goes with probs and labels, not with conf')
    needy = [n for n in names if n == 'NLL' or metric_of(n).wanted not in (None, 'doubt')]
    if needy:
        raise ValueError(f'{", ".join(needy)} needs probs and labels, not conf and correct')
    return of_confidences(*_read_confidences(conf, correct)), None


def _read(probs: Array, labels: Array, ignore_index: int | None) -> tuple[Tensor, Tensor, float]:
    """Return checked probabilities ``(M, K)`` and labels, and what a probability of 0 counts as."""
    probs, labels = mark_masked(probs, labels)
    probs = floats_of('probs', probs)
    rows, classes = labelled_rows('probs', probs, integers_of('labels', labels), ignore_index)
    rows = at_least_single(rows)
    if rows.shape[1] == 1:
        check_range(rows, 'probs')
        rows = torch.cat([1 - rows, rows], dim=1)
    else:
        try:
            check_probabilities(rows.T, 'probs')
        except ValueError as error:
            if not axes_look_alike(probs):
                raise
            remedy = 'or, if the last axis has the classes, probs.movedim(-1, 1)'
            raise ValueError(f'{error}, {remedy}') from None
    return rows.clamp(max=1), classes, smallest_probability(probs.dtype)


def _read_confidences(conf: Array, correct: Array) -> tuple[Tensor, Tensor]:
    conf, correct = mark_masked(conf, correct)
    conf, correct = floats_of('conf', conf), tensor_of('correct', correct).cpu()
    if correct.shape != conf.shape:
        shapes = f'{tuple(conf.shape)} and {tuple(correct.shape)}'
        raise ValueError(f'conf and correct must have one shape, got {shapes}')
    valid = valid_labels(correct, None)
    conf, correct = at_least_single(conf)[valid], correct[valid]
    if correct.dtype != torch.bool and not ((correct == 0) | (correct == 1)).all():
        raise ValueError(f'correct must be booleans, got values such as {correct.unique()[:5]}')
    check_range(conf, 'conf')
    return conf.clamp(max=1), correct.bool()
