"""Brier scores of arrays of probabilities, and the parts of that of the confidence: numpy or torch.

Arguments and errors are those of
:func:`~mmcalib.metrics.functional.calibration_error.expected_calibration_error`. Of the confidence
as a forecast of being right, reliability - resolution + uncertainty is the Brier score, if all
confidences of a bin are its mean; it is not :func:`brier_score`, which sums over classes.
"""

from __future__ import annotations

import numpy as np  # noqa: F401  the examples use it

from mmcalib.arrays import A, Array
from mmcalib.metrics.functional.calibration_error import measure


def brier_score(probs: Array, labels: Array, *, ignore_index: int | None = None) -> float:
    r"""Return the mean of :math:`\sum_k (p_k - [k = y])^2`, which lies between 0 and 2.

    >>> brier_score(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([0, 0]))
    1.25
    """
    return measure('Brier', probs, labels, ignore_index=ignore_index)


def confidence_reliability(
    probs: A = None,
    labels: A = None,
    *,
    conf: A = None,
    correct: A = None,
    num_bins: int = 15,
    ignore_index: int | None = None,
) -> float:
    r"""Return the binned reliability of the confidence; 0 is best, 1 worst.

    .. math:: \sum_b \frac{n_b}{n} (\mathrm{acc}_b - \mathrm{conf}_b)^2

    >>> conf, correct = np.array([0.9, 0.9, 0.6, 0.6]), np.array([True, False, True, True])
    >>> round(confidence_reliability(conf=conf, correct=correct, num_bins=5), 6)
    0.16

    Source: Murphy, A New Vector Partition of the Probability Score, 1973.
    """
    return measure(
        'reliability', probs, labels, conf, correct, num_bins=num_bins, ignore_index=ignore_index
    )


def confidence_resolution(
    probs: A = None,
    labels: A = None,
    *,
    conf: A = None,
    correct: A = None,
    num_bins: int = 15,
    ignore_index: int | None = None,
) -> float:
    r"""Return how far the accuracies of bins lie from their mean; 0.25 is the best value.

    .. math:: \sum_b \frac{n_b}{n} (\mathrm{acc}_b - \mathrm{acc})^2

    >>> conf, correct = np.array([0.9, 0.9, 0.6, 0.6]), np.array([True, False, True, True])
    >>> round(confidence_resolution(conf=conf, correct=correct, num_bins=5), 6)
    0.0625

    Source: Murphy, 1973.
    """
    return measure(
        'resolution', probs, labels, conf, correct, num_bins=num_bins, ignore_index=ignore_index
    )


def confidence_uncertainty(
    probs: A = None,
    labels: A = None,
    *,
    conf: A = None,
    correct: A = None,
    ignore_index: int | None = None,
) -> float:
    r"""Return :math:`\mathrm{acc} (1 - \mathrm{acc})`, which does not depend on the confidence.

    >>> conf, correct = np.array([0.9, 0.9, 0.6, 0.6]), np.array([True, False, True, True])
    >>> round(confidence_uncertainty(conf=conf, correct=correct), 6)
    0.1875

    Source: Murphy, 1973.
    """
    return measure('uncertainty', probs, labels, conf, correct, ignore_index=ignore_index)
