"""Calibration of arrays of probabilities, in one call: no Runner, no config, no mmengine.

Each function takes probabilities ``(N, K)`` of N predictions and K classes with their true labels
``(N,)``, or, where that suffices, confidences ``conf=`` and whether they came true ``correct=``:
arrays of numpy, tensors or lists. None takes logits: take their softmax first. Arguments and errors
are those of :func:`expected_calibration_error`. Others are in ``classwise_calibration_error.py``,
``brier.py`` and ``risk_coverage.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np  # noqa: F401  the examples use it
import torch
from torch import Tensor

from mmcalib.arrays import A, Array, floats_of, integers_of, labelled_rows, tensor_of
from mmcalib.checks import at_least_single, check_probabilities, check_range
from mmcalib.metrics.calibration_state import CalibrationState
from mmcalib.samples.predictions import Prediction, of_probabilities, smallest_probability

# Probabilities that are worked on together.
PIECE = 1 << 22


def expected_calibration_error(
    probs: A = None,
    labels: A = None,
    *,
    conf: A = None,
    correct: A = None,
    num_bins: int = 15,
    ignore_index: int | None = None,
) -> float:
    r"""Return the expected calibration error, ECE, in percent.

    .. math:: \sum_b \frac{n_b}{n} \left| \mathrm{acc}_b - \mathrm{conf}_b \right|

    over bins of equal width, each (lo, hi]. NaN of no predictions.

    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
    >>> round(expected_calibration_error(probs, np.array([0, 1, 1, 0]), num_bins=2), 6)
    25.0
    >>> conf, correct = np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, False, True, False])
    >>> round(expected_calibration_error(conf=conf, correct=correct, num_bins=2), 6)
    25.0

    Source: Eq. 8 of the paper.

    Args:
        probs: ``(N, K)`` probabilities, or maps ``(N, K, H, W)`` of them; ``(N,)`` or K = 1 for
            the probability of class 1 of two.
        labels: ``(N,)`` or ``(N, H, W)`` true classes, integers from 0 to K - 1.
        conf: Probabilities of the predicted classes, in place of `probs` and `labels`.
        correct: Booleans of the same shape, whether these were right.
        num_bins: B.
        ignore_index: The label of what to leave out, such as mmsegmentation's 255.

    Raises:
        TypeError: For what is no array of numbers, labels that are no integers, or an
            `ignore_index` without labels.
        ValueError: For values outside [0, 1], rows that do not sum to one, labels out of range, or
            arrays that do not fit each other.
    """
    return measure(
        'ECE', probs, labels, conf, correct, num_bins=num_bins, ignore_index=ignore_index
    )


def adaptive_calibration_error(
    probs: A = None,
    labels: A = None,
    *,
    conf: A = None,
    correct: A = None,
    num_bins: int = 15,
    ignore_index: int | None = None,
) -> float:
    """Return the calibration error over bins of equal count, AECE, in percent.

    The formula is that of :func:`expected_calibration_error`. Equal confidences are shared between
    bins in proportion, so no order of the predictions changes the number.

    >>> conf, correct = np.array([0.6, 0.7, 0.8, 0.9]), np.array([False, True, False, True])
    >>> round(adaptive_calibration_error(conf=conf, correct=correct, num_bins=2), 6)
    25.0
    """
    return measure(
        'AECE', probs, labels, conf, correct, num_bins=num_bins, ignore_index=ignore_index
    )


def maximum_calibration_error(
    probs: A = None,
    labels: A = None,
    *,
    conf: A = None,
    correct: A = None,
    num_bins: int = 15,
    ignore_index: int | None = None,
) -> float:
    r"""Return :math:`\max_b |\mathrm{acc}_b - \mathrm{conf}_b|` over non-empty bins, in percent.

    >>> conf, correct = np.array([0.9, 0.9, 0.6]), np.array([True, False, True])
    >>> round(maximum_calibration_error(conf=conf, correct=correct, num_bins=5), 6)
    40.0
    """
    return measure(
        'MCE', probs, labels, conf, correct, num_bins=num_bins, ignore_index=ignore_index
    )


def root_mean_square_calibration_error(
    probs: A = None,
    labels: A = None,
    *,
    conf: A = None,
    correct: A = None,
    num_bins: int = 15,
    ignore_index: int | None = None,
) -> float:
    r"""Return the root mean square gap of the bins, in percent.

    .. math:: \sqrt{\sum_b \frac{n_b}{n} (\mathrm{acc}_b - \mathrm{conf}_b)^2}

    >>> conf, correct = np.array([0.9, 0.9, 0.6, 0.6]), np.array([True, False, True, True])
    >>> round(root_mean_square_calibration_error(conf=conf, correct=correct, num_bins=5), 6)
    40.0
    """
    return measure(
        'RMSCE', probs, labels, conf, correct, num_bins=num_bins, ignore_index=ignore_index
    )


def overconfidence_error(
    probs: A = None,
    labels: A = None,
    *,
    conf: A = None,
    correct: A = None,
    num_bins: int = 15,
    ignore_index: int | None = None,
) -> float:
    r"""Return the over-confidence error, in percent.

    .. math:: \sum_b \frac{n_b}{n} \mathrm{conf}_b \max(\mathrm{conf}_b - \mathrm{acc}_b, 0)

    >>> conf, correct = np.array([0.9, 0.9, 0.6, 0.6]), np.array([True, False, True, True])
    >>> round(overconfidence_error(conf=conf, correct=correct, num_bins=5), 6)
    18.0

    Source: Thulasidasan et al., On Mixup Training, 2019.
    """
    return measure('OE', probs, labels, conf, correct, num_bins=num_bins, ignore_index=ignore_index)


def smooth_calibration_error(
    probs: A = None,
    labels: A = None,
    *,
    conf: A = None,
    correct: A = None,
    ignore_index: int | None = None,
) -> float:
    r"""Return the smooth calibration error, smECE, in percent, which has no bins.

    .. math:: \sigma = \int_0^1 \Big| \frac1N \sum_i (y_i - p_i) K_\sigma(t, p_i) \Big| \, dt

    for correctness :math:`y_i` and confidence :math:`p_i`, and the one width :math:`\sigma` of a
    Gaussian kernel, reflected at 0 and 1, that this holds for.

    >>> conf, correct = np.array([0.75, 0.75, 0.25, 0.25]), np.array([True, True, False, False])
    >>> round(smooth_calibration_error(conf=conf, correct=correct), 1)
    19.8

    Source: Błasiok and Nakkiran, Smooth ECE, ICLR 2024.
    """
    return measure('smECE', probs, labels, conf, correct, ignore_index=ignore_index)


def debiased_calibration_error(
    probs: A = None,
    labels: A = None,
    *,
    conf: A = None,
    correct: A = None,
    num_bins: int = 15,
    ignore_index: int | None = None,
) -> float:
    r"""Return the root mean square gap of the bins after subtracting their noise, in percent.

    .. math:: \sqrt{\max\Big(0, \sum_b \frac{n_b}{n} \Big[ (\mathrm{acc}_b - \mathrm{conf}_b)^2
        - \frac{\mathrm{acc}_b (1 - \mathrm{acc}_b)}{n_b - 1} \Big]\Big)}

    >>> conf, correct = np.array([0.9, 0.9, 0.6, 0.6]), np.array([False, False, True, True])
    >>> round(debiased_calibration_error(conf=conf, correct=correct, num_bins=5), 6)
    69.641941

    Source: Kumar, Liang and Ma, Verified Uncertainty Calibration, NeurIPS 2019, Definition 5.2.
    """
    return measure(
        'debiasedECE', probs, labels, conf, correct, num_bins=num_bins, ignore_index=ignore_index
    )


def average_calibration_error(
    probs: A = None,
    labels: A = None,
    *,
    conf: A = None,
    correct: A = None,
    num_bins: int = 15,
    ignore_index: int | None = None,
) -> float:
    r"""Return the mean gap of the non-empty bins, all weighted equally, in percent.

    .. math:: \frac{1}{\#\{b : n_b > 0\}} \sum_{b : n_b > 0}
        \left| \mathrm{acc}_b - \mathrm{conf}_b \right|

    netcal and MONAI call it ACE; it is not the adaptive error, :func:`adaptive_calibration_error`.

    >>> conf, correct = np.array([0.9, 0.9, 0.6]), np.array([True, False, True])
    >>> round(average_calibration_error(conf=conf, correct=correct, num_bins=5), 6)
    40.0

    Source: Neumann, Zisserman and Vedaldi, Relaxed Softmax: Efficient Confidence
    Auto-Calibration for Safe Pedestrian Detection, 2018.
    """
    return measure(
        'ACE', probs, labels, conf, correct, num_bins=num_bins, ignore_index=ignore_index
    )


def negative_log_likelihood(
    probs: Array, labels: Array, *, ignore_index: int | None = None
) -> float:
    r"""Return the mean of :math:`-\log p_y` of the true classes y, in nats.

    A probability of 0 counts as the least that its type of float can hold: 87 nats in float32, and
    17 in float16, which rounds all below 3e-8 to 0.

    >>> probs = np.array([[0.5, 0.5], [0.25, 0.75]])
    >>> round(negative_log_likelihood(probs, np.array([0, 0])), 6)
    1.039721
    """
    return measure('NLL', probs, labels, ignore_index=ignore_index)


def accuracy(probs: Array, labels: Array, *, ignore_index: int | None = None) -> float:
    """Return the share of predictions whose most probable class is the true one, in percent.

    >>> accuracy(np.array([[0.9, 0.1], [0.8, 0.2]]), np.array([0, 1]))
    50.0
    """
    return measure('accuracy', probs, labels, ignore_index=ignore_index)


def mean_confidence(probs: Array) -> float:
    """Return the mean probability of the most probable classes, in percent.

    >>> round(mean_confidence(np.array([[0.9, 0.1], [0.8, 0.2]])), 6)
    85.0
    """
    probs = floats_of('probs', probs)
    labels = torch.zeros(probs.shape[:1] + probs.shape[2:], dtype=torch.int64)
    return measure('confidence', probs, labels)


def confidence_gap(
    probs: A = None,
    labels: A = None,
    *,
    conf: A = None,
    correct: A = None,
    ignore_index: int | None = None,
) -> float:
    r"""Return mean confidence less accuracy, in percent points: above 0 is over-confident.

    .. math:: \overline{\mathrm{conf}} - \mathrm{acc}

    Its size is at most the ECE, and noise does not bias it. Over- and under-confident predictions
    cancel.

    >>> round(confidence_gap(conf=np.array([0.9, 0.8]), correct=np.array([True, False])), 6)
    35.0
    """
    return measure('gap', probs, labels, conf, correct, ignore_index=ignore_index)


def measure(
    name: str,
    probs: A = None,
    labels: A = None,
    conf: A = None,
    correct: A = None,
    num_bins: int = 15,
    ignore_index: int | None = None,
) -> float:
    """Return one of ``CalibrationMetric``'s metrics of arrays; see the functions that call it."""
    arrays = dict(probs=probs, labels=labels, conf=conf, correct=correct)
    state = state_of([name], **arrays, num_bins=num_bins, ignore_index=ignore_index)
    return state.compute()[name]


def state_of(
    names: Sequence[str],
    *,
    probs: A,
    labels: A,
    conf: A,
    correct: A,
    num_bins: int,
    ignore_index: int | None,
    keep_bins: bool = False,
) -> CalibrationState:
    """Return the state of some of these metrics that has counted arrays."""
    given = [x is not None for x in (probs, labels, conf, correct)]
    if given not in ([True, True, False, False], [False, False, True, True]):
        raise TypeError('give probs and labels, or conf=… and correct=…')
    options = dict(num_bins=num_bins, keep_bins=keep_bins)
    if probs is None:
        if ignore_index is not None:
            raise TypeError('ignore_index is a label: it goes with probs and labels, not with conf')
        prediction = _read_confidences(conf, correct)
        state = CalibrationState(names, exact_limit=len(prediction.conf), **options)
        return state.update(prediction)
    probs, labels, smallest = read_probabilities(probs, labels, ignore_index)
    state = CalibrationState(names, exact_limit=len(probs), **options)
    options = dict(wanted=state.wanted, floor=state.floor, smallest=smallest)
    # Of no predictions too there is one piece.
    step = max(PIECE // probs.shape[1], 1)
    for rows, classes in zip(probs.split(step), labels.split(step), strict=True):
        columns = at_least_single(rows).clamp(max=1).T
        state.update(of_probabilities(columns, classes, **options))
    return state


def read_probabilities(
    probs: Array, labels: Array, ignore_index: int | None = None
) -> tuple[Tensor, Tensor, float]:
    """Return checked probabilities ``(M, K)`` and labels, and what a probability of 0 counts as."""
    probs = floats_of('probs', probs)
    if probs.ndim == 1 and tensor_of('labels', labels).dtype == torch.bool:
        raise TypeError(
            'probs (N,) with booleans may be confidences and whether they came true, or '
            'probabilities of class 1 and labels: give conf=… and correct=…, or integer labels'
        )
    labels = integers_of('labels', labels)
    rows, labels = labelled_rows('probs', probs, labels, ignore_index)
    if rows.shape[1] == 1:
        rows = at_least_single(rows)
        check_range(rows, 'probs')
        rows = torch.cat([1 - rows, rows], dim=1)
    else:
        check_probabilities(at_least_single(rows).T, 'probs')
    return rows, labels, smallest_probability(probs.dtype)


def _read_confidences(conf: Array, correct: Array) -> Prediction:
    conf, correct = floats_of('conf', conf), tensor_of('correct', correct).cpu()
    if correct.shape != conf.shape:
        raise ValueError(
            f'conf and correct must have one shape, got {tuple(conf.shape)} and '
            f'{tuple(correct.shape)}; probabilities of all classes go with labels'
        )
    conf, correct = at_least_single(conf).flatten(), correct.flatten()
    if correct.dtype != torch.bool and not ((correct == 0) | (correct == 1)).all():
        raise ValueError(f'correct must be booleans, got values such as {correct.unique()[:5]}')
    check_range(conf, 'conf')
    return Prediction(conf.clamp(max=1), correct.bool())
