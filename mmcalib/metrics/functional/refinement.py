r"""The part of the NLL that a temperature removes, from arrays of logits: numpy or torch.

Each function takes raw logits ``(N, K)`` of N predictions and K classes, or ``(N, 1)`` of a binary
classifier that ends in a sigmoid, with their true labels ``(N,)``. Arguments and errors are those
of :func:`refinement_nll`.
"""

from __future__ import annotations

import numpy as np  # noqa: F401  the examples use it
import torch
from torch import Tensor

from mmcalib.arrays import Array, floats_of, integers_of, labelled_rows
from mmcalib.checks import SUM_TOLERANCE, at_least_single, check_finite
from mmcalib.metrics.refinement import FoldedCurves
from mmcalib.samples.nll_curve import nll_curve
from mmcalib.samples.predictions import PIECE_BYTES


def refinement_nll(
    logits: Array, labels: Array, *, images: Array | None = None, ignore_index: int | None = None
) -> float:
    r"""Return the NLL after a cross-validated temperature, in nats, which no temperature removes.

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
        logits: ``(N, K)`` raw logits, or logarithms of probabilities, or maps ``(N, K, H, W)`` of
            them; ``(N,)`` or K = 1 before a sigmoid.
        labels: ``(N,)`` or ``(N, H, W)`` true classes, integers from 0 to K - 1.
        images: ``(N,)`` integers, the place in the data set of the image that each row or map is
            of, so that pixels of an image are in one fold; each row or map is one if None.
        ignore_index: The label of what to leave out, such as mmsegmentation's 255.

    Raises:
        TypeError: For what is no array of numbers, or labels or images that are no integers.
        ValueError: For NaN or infinite logits, probabilities, labels out of range, or arrays that
            do not fit each other.
    """
    return _curves(logits, labels, images, ignore_index).refinement_nll()


def calibration_nll(
    logits: Array, labels: Array, *, images: Array | None = None, ignore_index: int | None = None
) -> float:
    """Return the NLL minus :func:`refinement_nll`, in nats: the part that a temperature removes.

    Of few predictions it may come out below 0.

    >>> logits = np.array([[4.0, 0.0]] * 40)
    >>> round(calibration_nll(logits, np.array([1] * 10 + [0] * 30)), 3)
    0.455
    """
    return _curves(logits, labels, images, ignore_index).calibration_nll()


def optimal_temperature(logits: Array, labels: Array, *, ignore_index: int | None = None) -> float:
    """Return the temperature of the lowest NLL, within [1/16, 16].

    Above 1 the predictions are over-confident. NaN of no predictions.
    :class:`~mmcalib.posthoc.TemperatureScaler` fits one to more digits and within wider bounds.

    >>> logits = np.array([[4.0, 0.0]] * 40)
    >>> round(optimal_temperature(logits, np.array([1] * 10 + [0] * 30)), 3)  # 4 / log(3)
    3.641
    """
    return _curves(logits, labels, None, ignore_index).temperature()


def _curves(
    logits: Array, labels: Array, images: Array | None, ignore_index: int | None
) -> FoldedCurves:
    logits, labels = at_least_single(floats_of('logits', logits)), integers_of('labels', labels)
    rows, classes = labelled_rows('logits', logits, labels, ignore_index)
    rows = _checked(rows)
    places = torch.arange(len(labels)) if images is None else integers_of('images', images)
    if places.shape != labels.shape[:1]:
        raise ValueError(
            f'images must be ({len(labels)},), one per row or map, got {tuple(places.shape)}'
        )
    places = places.reshape(-1, *[1] * (labels.ndim - 1)).expand_as(labels).flatten()
    if ignore_index is not None:
        places = places[labels.flatten() != ignore_index]
    curves = FoldedCurves()
    step = max(PIECE_BYTES // (rows.shape[1] * rows.element_size()), 1)
    parts = zip(rows.split(step), classes.split(step), places.split(step), strict=True)
    for piece, own, where in parts:
        curves.add(where, nll_curve(piece.T.contiguous(), own), torch.ones(len(where)))
    return curves


def _checked(logits: Tensor) -> Tensor:
    """Return ``(M, K)`` logits, K at least 2."""
    check_finite(logits, 'logits')
    if logits.shape[1] == 1:
        return torch.cat([torch.zeros_like(logits), logits], dim=1)
    if len(logits) and logits.min() >= 0 and (logits.sum(dim=1) - 1).abs().max() < SUM_TOLERANCE:
        raise ValueError(
            'logits are all at least 0 and sum to 1, as probabilities do: give raw logits, or the '
            'logarithm of the probabilities'
        )
    return logits
