"""All metrics of arrays in one call: numpy, torch or lists, without a Runner or a config."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from mmcalib.metrics.definitions import find_metric, metric_names
from mmcalib.metrics.measurement import DEFAULT_METRICS
from mmcalib.metrics.protocols import PROTOCOLS
from mmcalib.metrics.streaming import StreamingMetrics, Values
from mmcalib.options import suggests_arguments
from mmcalib.predictions.arrays import Array
from mmcalib.predictions.distributed import gather_one_process
from mmcalib.predictions.from_arrays import read_arrays
from mmcalib.predictions.image_predictions import ImagePredictions


@suggests_arguments
def measure(
    probs: Array | None = None,
    labels: Array | None = None,
    metrics: str | Sequence[str] = DEFAULT_METRICS,
    *,
    conf: Array | None = None,
    correct: Array | None = None,
    num_bins: int = 15,
    ignore_index: int | None = None,
    interval: float | None = None,
    groups: Sequence[Hashable] | None = None,
) -> Values:
    """Return metrics of probabilities by the names that ``CalibrationMetric`` has.

    They are in percent but for ``NLL`` and its parts, in nats, ``Brier`` and its parts, and the
    temperature; NaN without predictions. Several are a dict that prints as a table, see
    :class:`~mmcalib.metrics.Measured`.

    >>> import numpy as np
    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
    >>> {k: round(v, 3) for k, v in measure(probs, [0, 1, 1, 0], ['NLL', 'AURC']).items()}
    {'NLL': 0.747, 'AURC': 33.333}
    >>> measure(probs, [0, 1, 1, 0], 'accuracy')
    50.0
    >>> values = measure(probs, [0, 1, 1, 0], 'accuracy', interval=0.95)
    >>> {name: round(value, 1) for name, value in values.items()}
    {'accuracy': 50.0, 'accuracy_low': 0.0, 'accuracy_high': 100.0}
    >>> measure([[0.9, 0.8], [0.4, 0.3]], [[1, 0], [0, 0]], ['accuracy'])
    {'accuracy': array([100.,  50.]), 'accuracy_macro': 75.0}

    A probability of 0 counts in the NLL as the least that its type of float can hold: 87 nats in
    float32, and 17 in float16, which rounds all below 3e-8 to 0. Of a single probability p, float32
    knows 1 - p to 17 nats; give both, or logits to :func:`evaluate`, for more.

    Args:
        probs: ``(N, K)`` probabilities, or maps ``(N, K, H, W)`` and volumes ``(N, K, D, H, W)``
            of them; ``(N,)`` or K = 1 for the probability of class 1 of two; ``(N, L)`` for those
            of L labels, each of which is there or not.
        labels: ``(N,)``, ``(N, H, W)`` or ``(N, D, H, W)`` true classes, integers from 0 to K - 1;
            ``(N, L)`` of 0 and 1 for L labels: their values are ``(L,)``, and their mean without
            those that are NaN is ``ECE_macro`` and so on. A column ``(N, 1)`` is ``(N,)``. Values
            that numpy masks, here or in the other arrays, are not valid.
        metrics: A name, for its value alone if there is no `interval`, or several.
        conf: Probabilities of the predicted classes, in place of `probs` and `labels`.
        correct: Booleans of the same shape: whether these predictions are correct.
        num_bins: B.
        ignore_index: Label of the predictions that are not valid, such as mmsegmentation's 255.
        interval: Level of intervals, such as 0.95, whose ends are ``ECE_low`` and ``ECE_high``
            and so on, beside the value of a single name too. They are those of
            ``CalibrationMetric(confidence_interval=…)``, over the N rows or images, for the same
            metrics.
        groups: N names of the groups that are independent, in place of the images: the patient of
            each slice, the video of each frame.

    Raises:
        TypeError: For arguments that are no arrays of numbers, labels that are no integers, an
            `ignore_index` without labels, or `groups` without an `interval`.
        ValueError: For an unknown metric, values outside [0, 1], rows that do not sum to one,
            labels out of range, or arrays that do not fit each other.
    """
    stream = StreamingMetrics(
        metrics, num_bins=num_bins, interval=interval, gather=gather_one_process
    )
    check_groups_option(groups, interval)
    predictions = read_arrays(probs, labels, conf, correct, ignore_index=ignore_index)
    check_bare_confidences(predictions, metrics)
    stream.add(predictions)
    return stream.compute(groups)


def check_groups_option(
    groups: Sequence[Hashable] | None, interval: float | None, protocol: str = 'pooled'
) -> None:
    """Raise a TypeError for groups that no interval is over."""
    if groups is None:
        return
    if interval is None:
        raise TypeError('groups serve an interval alone: give interval=0.95 too')
    if PROTOCOLS[protocol].images_per_unit:
        raise TypeError(f'protocol={protocol!r} has groups of its own: leave groups out')


def check_bare_confidences(predictions: ImagePredictions, metrics: str | Sequence[str]) -> None:
    """Raise a ValueError for metrics that need the probabilities of all classes."""
    if not predictions.are_bare_confidences:
        return
    wrong = []
    for name in metric_names(metrics):
        if name == 'NLL' or find_metric(name).required not in (None, 'conf_code'):
            wrong.append(name)
    if wrong:
        raise ValueError(f'{", ".join(wrong)} needs probs and labels, not conf and correct')


def expected_calibration_error(
    probs: Array | None = None, labels: Array | None = None, **options: Any
) -> Values:
    r"""Return the expected calibration error, ECE, in percent.

    .. math:: \sum_b \frac{n_b}{n} \left| \mathrm{acc}_b - \mathrm{conf}_b \right|

    over bins of equal width, each (lo, hi]; NaN without predictions. Options and errors are those
    of :func:`measure`.

    >>> import numpy as np
    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
    >>> round(expected_calibration_error(probs, np.array([0, 1, 1, 0]), num_bins=2), 6)
    25.0
    >>> conf, correct = np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, False, True, False])
    >>> round(expected_calibration_error(conf=conf, correct=correct, num_bins=2), 6)
    25.0

    Source: Eq. 8 of the paper.
    """
    return measure(probs, labels, 'ECE', **options)


def adaptive_calibration_error(
    probs: Array | None = None, labels: Array | None = None, **options: Any
) -> Values:
    """Return the calibration error over bins of equal count, AECE, in percent.

    The formula is that of :func:`expected_calibration_error`. Equal confidences are shared between
    bins in proportion, so no order of the predictions changes the number.

    >>> import numpy as np
    >>> conf, correct = np.array([0.6, 0.7, 0.8, 0.9]), np.array([False, True, False, True])
    >>> round(adaptive_calibration_error(conf=conf, correct=correct, num_bins=2), 6)
    25.0
    """
    return measure(probs, labels, 'AECE', **options)
