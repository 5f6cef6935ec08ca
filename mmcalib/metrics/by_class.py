"""Calibration of each class: of its probabilities, or of the predictions that name it."""

from __future__ import annotations

import math

import numpy as np

from mmcalib.metrics.calibration_errors import adaptive_error
from mmcalib.metrics.counts import count_outcomes, sum_counts
from mmcalib.metrics.outcomes import compute_outcomes
from mmcalib.metrics.strata import stratum_figures
from mmcalib.metrics.streaming import mean_without_nan
from mmcalib.options import check_integer, check_number
from mmcalib.predictions.arrays import Array
from mmcalib.predictions.from_arrays import read_arrays
from mmcalib.predictions.image_predictions import predictions_from_confidences
from mmcalib.tensors import at_least_single


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
        threshold: Largest probability that is left out, from 0 to 1; None to leave none out.
    """
    check_integer('num_bins', num_bins)
    if threshold is not None:
        check_number('threshold', threshold, most=1.0)
    predictions = read_arrays(probs, labels, ignore_index=ignore_index).valid_rows()
    probs_of_classes = at_least_single(predictions.class_probabilities())
    errors = []
    for class_index, prob in enumerate(probs_of_classes.unbind(1)):
        is_class = predictions.labels == class_index
        if threshold is not None:
            is_above = prob > threshold
            prob = prob[is_above]
            is_class = is_class[is_above]
        if not len(prob):
            errors.append(math.nan)
            continue
        outcomes = compute_outcomes(predictions_from_confidences(prob, is_class))
        counts = sum_counts([count_outcomes(outcomes)])
        errors.append(float(adaptive_error(counts.table, num_bins)))
    return mean_without_nan(np.array(errors))


def predicted_class_calibration(
    probs: Array, labels: Array, *, num_bins: int = 15, ignore_index: int | None = None
) -> dict[str, np.ndarray]:
    """Return ECE, accuracy and mean confidence, in percent, and the count of each predicted class.

    They tell how far the model can be trusted when it predicts a class. NaN for classes that are
    never predicted. Arguments and errors are those of :func:`measure`.

    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    >>> figures = predicted_class_calibration(probs, np.array([0, 1, 1]), num_bins=1)
    >>> {name: values.round(6).tolist() for name, values in figures.items()}
    {'ECE': [35.0, 30.0], 'accuracy': [50.0, 100.0], 'confidence': [85.0, 70.0], 'count': [2, 1]}

    Returns:
        ``ECE``, ``accuracy``, ``confidence`` and ``count``, ``(K,)`` each.
    """
    check_integer('num_bins', num_bins)
    predictions = read_arrays(probs, labels, ignore_index=ignore_index)
    parts = []
    for part in predictions.split_maps():
        outcomes = compute_outcomes(part, num_bins=num_bins)
        strata = {'predicted': (outcomes.predicted, predictions.num_classes)}
        parts.append(count_outcomes(outcomes, num_bins, strata=strata))
    figures = stratum_figures(sum_counts(parts).strata['predicted'])
    return {name: np.array(values) for name, values in figures.items()}
