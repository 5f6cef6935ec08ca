"""Calibration of each class, of arrays of probabilities, in one call: numpy or torch.

Arguments and errors are those of
:func:`~mmcalib.metrics.functional.calibration_error.expected_calibration_error`.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from mmcalib.arrays import Array
from mmcalib.checks import at_least_single, check_integer, check_number
from mmcalib.metrics.bins.binned_errors import equal_mass_error
from mmcalib.metrics.bins.narrow_bins import ConfidenceBins
from mmcalib.metrics.bins.stratified_bins import stratum_figures
from mmcalib.metrics.calibration_state import CalibrationState
from mmcalib.metrics.functional.calibration_error import measure, read_probabilities
from mmcalib.samples.predictions import of_probabilities


def classwise_calibration_error(
    probs: Array,
    labels: Array,
    *,
    num_bins: int = 15,
    ignore_index: int | None = None,
) -> float:
    r"""Return the class-wise ECE, in percent: the mean ECE of the probabilities of each class.

    .. math:: \frac1K \sum_k \sum_b \frac{n_{bk}}{n} \left| \mathrm{freq}_{bk} - p_{bk} \right|

    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
    >>> round(classwise_calibration_error(probs, np.array([0, 1, 1, 0]), num_bins=2), 6)
    25.0
    """
    return measure('ClasswiseECE', probs, labels, num_bins=num_bins, ignore_index=ignore_index)


def classwise_adaptive_calibration_error(
    probs: Array,
    labels: Array,
    *,
    num_bins: int = 15,
    ignore_index: int | None = None,
) -> float:
    r"""Return the class-wise AECE, in percent: the mean AECE of the probabilities of each class.

    The formula is that of :func:`classwise_calibration_error`, over bins of equal count; equal
    probabilities are shared between bins in proportion. Exact, where the registered metric
    ``ClasswiseAECE`` has a bound.

    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
    >>> round(classwise_adaptive_calibration_error(probs, np.array([0, 1, 1, 0]), num_bins=2), 6)
    25.0

    Source: Nixon et al., Measuring Calibration in Deep Learning, 2019.
    """
    return _adaptive_error(probs, labels, num_bins, None, ignore_index)


def thresholded_adaptive_calibration_error(
    probs: Array,
    labels: Array,
    *,
    num_bins: int = 15,
    threshold: float = 0.01,
    ignore_index: int | None = None,
) -> float:
    r"""Return TACE, in percent: the class-wise AECE of the probabilities above a threshold.

    The mean is over the classes that have any; NaN where none has. Exact, where the registered
    metric ``TACE`` has a bound.

    >>> probs = np.array([[0.995, 0.005], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
    >>> round(thresholded_adaptive_calibration_error(probs, np.array([0, 1, 1, 0]), num_bins=1), 6)
    14.520833

    Source: Nixon et al., Measuring Calibration in Deep Learning, 2019.

    Other arguments and errors are those of
    :func:`~mmcalib.metrics.functional.calibration_error.expected_calibration_error`.

    Args:
        threshold: From 0 to 1; probabilities of at most this are left out.
    """
    check_number('threshold', threshold, most=1.0)
    return _adaptive_error(probs, labels, num_bins, threshold, ignore_index)


def predicted_class_calibration(
    probs: Array,
    labels: Array,
    *,
    num_bins: int = 15,
    ignore_index: int | None = None,
) -> dict[str, np.ndarray]:
    """Return ECE, accuracy and mean confidence, in percent, and the count of each predicted class.

    Of the predictions of one class at a time: how far the network can be trusted that says so. NaN
    for classes that are never predicted.

    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    >>> found = predicted_class_calibration(probs, np.array([0, 1, 1]), num_bins=1)
    >>> {name: values.round(6).tolist() for name, values in found.items()}
    {'ECE': [35.0, 30.0], 'accuracy': [50.0, 100.0], 'confidence': [85.0, 70.0], 'count': [2, 1]}


    Returns:
        ``ECE``, ``accuracy``, ``confidence`` and ``count``, ``(K,)`` each.
    """
    state = CalibrationState(['ECE'], num_bins=num_bins, per_class=True)
    probs, labels, _ = read_probabilities(probs, labels, ignore_index)
    columns = at_least_single(probs).clamp(max=1).T
    state.update(of_probabilities(columns, labels, wanted=state.wanted))
    figures = stratum_figures(state.class_bins())
    return {name: np.array(values) for name, values in figures.items()}


def _adaptive_error(
    probs: Array, labels: Array, num_bins: int, threshold: float | None, ignore_index: int | None
) -> float:
    check_integer('num_bins', num_bins)
    probs, labels, _ = read_probabilities(probs, labels, ignore_index)
    found = [
        _error_of_class(column, labels == k, num_bins, threshold)
        for k, column in enumerate(at_least_single(probs).clamp(max=1).unbind(1))
    ]
    found = [error for error in found if not math.isnan(error)]
    return sum(found) / len(found) if found else math.nan


def _error_of_class(prob: Tensor, own: Tensor, num_bins: int, threshold: float | None) -> float:
    if threshold is not None:
        prob, own = prob[prob > threshold], own[prob > threshold]
    narrow_bins = ConfidenceBins(exact_limit=len(prob)).add(prob, own)
    return equal_mass_error(narrow_bins.table(), narrow_bins.spread(), num_bins)[0]
