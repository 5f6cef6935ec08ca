r"""Which part of the NLL a temperature mends, of arrays of logits, in one call: numpy or torch.

Each function takes raw logits ``(N, K)`` of N predictions and K classes, or ``(N, 1)`` of a binary
classifier that ends in a sigmoid, with their true labels ``(N,)``. Arguments and errors are those
of :func:`refinement_nll`.
"""

from __future__ import annotations

import numpy as np  # noqa: F401  the examples use it
import torch
from torch import Tensor

from mmcalib.checks import at_least_single, check_labels
from mmcalib.metrics.functional.calibration_error import Array, numbers_of, tensor_of
from mmcalib.metrics.refinement import FoldedCurves
from mmcalib.samples.fields import SUM_TOLERANCE, check_finite
from mmcalib.samples.nll_curve import nll_curve
from mmcalib.samples.predictions import PIECE_BYTES


def refinement_nll(logits: Array, labels: Array, *, images: Array | None = None) -> float:
    r"""Return the NLL after a cross-validated temperature, in nats: what no temperature mends.

    .. math:: \frac1N \sum_{f=1}^5 \sum_{i \in f} \mathrm{NLL}_i(T_f), \qquad
        T_f = \arg\min_T \sum_{i \notin f} \mathrm{NLL}_i(T)

    for five folds of the images. Logits that are all multiplied by a number have the same, while
    each T is within [1/16, 16]. NaN where fewer than two folds have predictions.

    >>> logits = np.array([[4.0, 0.0]] * 40)
    >>> labels = np.array([1] * 10 + [0] * 30)  # 75 % are right, where the logits say 98 %
    >>> round(refinement_nll(logits, labels), 3), round(refinement_nll(3 * logits, labels), 3)
    (0.563, 0.563)

    Source: Berta, Holzmüller, Jordan and Bach, Rethinking Early Stopping: Refine, Then Calibrate,
    arXiv:2501.19195.

    Args:
        logits: ``(N, K)`` raw logits, or logarithms of probabilities; ``(N, 1)`` before a sigmoid.
        labels: ``(N,)`` true classes, integers from 0 to K - 1.
        images: ``(N,)`` integers, the place in the data set of the image that each row is of, so
            that pixels of an image are in one fold; each row is one if None.

    Raises:
        TypeError: For what is no array of numbers, or labels or images that are no integers.
        ValueError: For NaN or infinite logits, probabilities, labels out of range, or arrays that
            do not fit each other.
    """
    return _curves(logits, labels, images).refinement_nll()


def calibration_nll(logits: Array, labels: Array, *, images: Array | None = None) -> float:
    """Return the NLL less :func:`refinement_nll`, in nats: what a temperature mends.

    Of few predictions it may come out below 0.

    >>> logits = np.array([[4.0, 0.0]] * 40)
    >>> round(calibration_nll(logits, np.array([1] * 10 + [0] * 30)), 3)
    0.455
    """
    return _curves(logits, labels, images).calibration_nll()


def optimal_temperature(logits: Array, labels: Array) -> float:
    """Return the temperature of the least NLL of all predictions, within [1/16, 16].

    Above 1 the predictions are over-confident. NaN of no predictions.
    :class:`~mmcalib.posthoc.TemperatureScaler` fits one to more digits and within wider bounds.

    >>> logits = np.array([[4.0, 0.0]] * 40)
    >>> round(optimal_temperature(logits, np.array([1] * 10 + [0] * 30)), 3)  # 4 / log(3)
    3.641
    """
    return _curves(logits, labels, None).temperature()


def _curves(logits: Array, labels: Array, images: Array | None) -> FoldedCurves:
    logits, labels = _read_logits(logits, labels)
    places = torch.arange(len(labels)) if images is None else _integers('images', images)
    if places.shape != labels.shape:
        raise ValueError(f'images must be ({len(labels)},), one per row, got {tuple(places.shape)}')
    curves = FoldedCurves()
    step = max(PIECE_BYTES // (logits.shape[1] * logits.element_size()), 1)
    parts = zip(logits.split(step), labels.split(step), places.split(step), strict=True)
    for rows, classes, where in parts:
        curves.add(where, nll_curve(rows.T.contiguous(), classes), torch.ones(len(where)))
    return curves


def _read_logits(logits: Array, labels: Array) -> tuple[Tensor, Tensor]:
    """Return checked logits ``(N, K)``, K at least 2, and labels."""
    logits, labels = at_least_single(numbers_of('logits', logits)), _integers('labels', labels)
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or not logits.shape[1]:
        raise ValueError(
            f'logits must be (N, K) and labels (N,), got {tuple(logits.shape)} and '
            f'{tuple(labels.shape)}'
        )
    check_finite(logits, 'logits')
    if logits.shape[1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
    elif len(logits) and logits.min() >= 0 and (logits.sum(dim=1) - 1).abs().max() < SUM_TOLERANCE:
        raise ValueError(
            'logits are all at least 0 and sum to 1, as probabilities do: give raw logits, or the '
            'logarithm of the probabilities'
        )
    check_labels(labels, logits.shape[1], name='labels')
    return logits, labels


def _integers(name: str, values: Array) -> Tensor:
    values = tensor_of(name, values)
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise TypeError(f'{name} must be integers, got {values.dtype}')
    return values.long()
