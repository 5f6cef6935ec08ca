"""Other frequencies of the classes than those of the held-out data: a shift of all log-odds."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmcalib.errors import UserError, warn
from mmcalib.posthoc.affine import MatrixScaler, TemperatureScaler, VectorScaler
from mmcalib.posthoc.binary import BetaScaler, PlattScaler
from mmcalib.posthoc.scaler import LogitScaler
from mmcalib.predictions.arrays import Array, as_floats, as_tensor
from mmcalib.tensors import check_probabilities, check_range

# A temperature is shifted as a scaling by vector or platt.
WITH_SHIFT = (TemperatureScaler, VectorScaler, MatrixScaler, PlattScaler, BetaScaler)
# Frequencies are often written with three digits.
SUM_TOLERANCE = 2e-3
# An estimate has converged if no frequency changes by more than this.
TOLERANCE = 1e-10
MOST_ITERATIONS = 100_000
# A frequency below so many of its standard errors is not told from 0.
DISTINCT = 2.0


def shift_class_prior(scaler: LogitScaler, new: Array, old: Array) -> LogitScaler:
    r"""Return a fitted scaling for data whose classes have other frequencies.

    .. math:: z''_k = z'_k + \log \frac{\pi^\mathrm{new}_k}{\pi^\mathrm{old}_k}

    By Bayes' rule this is right if the images of each class stay as they are, and only the
    frequencies of the classes change. A temperature becomes a scaling by ``vector``, of one sigmoid
    by ``platt``, which have a shift.

    >>> scaler = TemperatureScaler.from_parameters({'temperature': 2.0})
    >>> shifted = shift_class_prior(scaler, new=[0.2, 0.8], old=[0.5, 0.5])
    >>> shifted.predict_proba([[0.0, 0.0]]).round(6).tolist()
    [[0.2, 0.8]]

    Source: Elkan, The Foundations of Cost-Sensitive Learning, IJCAI 2001, Theorem 2.

    Args:
        scaler: A fitted scaling by temperature, vector, matrix, platt or beta; it stays as it is.
        new: ``(K,)`` frequencies of the classes where the model is used; of one sigmoid those of 0
            and of 1.
        old: ``(K,)`` frequencies in the data that the scaling was fitted to.

    Raises:
        NotFittedError: If the scaling is not fitted.
        UserError: If frequencies are not positive, do not sum to one, or are of another number of
            classes; for a scaling without a shift.
    """
    check_has_shift(scaler)
    tensors = scaler.tensors
    num_logits = vars(scaler).get('num_logits_', np.size(new))
    new_prior = check_class_prior('new', new, num_classes=max(num_logits, 2))
    old_prior = check_class_prior('old', old, num_classes=max(num_logits, 2))
    log_ratio = (new_prior / old_prior).log()
    shifted: LogitScaler
    if isinstance(scaler, (PlattScaler, BetaScaler)) or num_logits == 1:
        shift = log_ratio[1] - log_ratio[0]
    else:
        shift = log_ratio - log_ratio.mean()
    if isinstance(scaler, TemperatureScaler):
        scale = 1 / tensors['temperature']
        if num_logits == 1:
            shifted = PlattScaler.from_parameters({'scale': scale, 'shift': shift})
        else:
            scales = scale.expand(num_logits)
            shifted = VectorScaler.from_parameters({'scale': scales, 'shift': shift})
    else:
        parameters = {**tensors, 'shift': tensors['shift'] + shift}
        shifted = scaler.from_parameters(parameters, **scaler.get_params())
    shifted.least_conf = scaler.least_conf
    if 'num_logits_' in vars(scaler):
        shifted.num_logits_ = num_logits
    return shifted


def check_has_shift(scaler: Any) -> None:
    """Raise a UserError for a scaling that other frequencies of the classes could not shift."""
    if not isinstance(scaler, WITH_SHIFT):
        raise UserError(
            f'{scaler.method} has no shift that other frequencies of classes could change: take '
            'temperature, vector, matrix, platt or beta'
        )


def estimate_class_prior(probs: Array, old: Array) -> Tensor:
    r"""Return the frequencies of the classes in data without labels, ``(K,)`` float64.

    They are those of the greatest likelihood, if the probabilities are calibrated for data with the
    old frequencies, and the images of each class are the same. The EM algorithm iterates

    .. math:: \pi_k \leftarrow \frac1N \sum_i \frac{p_{ik} \, \pi_k / \pi^\mathrm{old}_k}
        {\sum_j p_{ij} \, \pi_j / \pi^\mathrm{old}_j}

    >>> probs = [[0.9, 0.1]] * 20 + [[0.1, 0.9]] * 80
    >>> estimate_class_prior(probs, old=[0.5, 0.5]).numpy().round(6).tolist()
    [0.125, 0.875]

    A rare class is found only among many predictions: the least standard error of a frequency is

    .. math:: \mathrm{SE}_k = (1 - \pi_k) \Big/ \sqrt{\sum_i \Big(\frac{p_{ik} / \pi^\mathrm{old}_k}
        {\sum_j p_{ij} \, \pi_j / \pi^\mathrm{old}_j} - 1\Big)^2}

    Source: Saerens, Latinne and Decaestecker, Adjusting the Outputs of a Classifier to New a Priori
    Probabilities, Neural Computation 2002; the standard error from the observed information of the
    likelihood.

    Args:
        probs: ``(N, K)`` calibrated probabilities, or maps ``(N, K, *)``; ``(N,)`` or K = 1 for
            class 1 of two. Calibrate the model first: what is over-confident gives wrong
            frequencies.
        old: ``(K,)`` frequencies of the classes in the data that the model was calibrated on.

    Warns:
        UserWarning: For a frequency that is not told from 0, since it is less than two standard
            errors.

    Raises:
        UserError: If the old frequencies are not positive or do not sum to one, or the
            probabilities are not of as many classes.
    """
    rows = class_rows(probs)
    old_prior = check_class_prior('old', old, num_classes=rows.shape[1])
    likelihood = rows / old_prior
    prior = old_prior
    for _ in range(MOST_ITERATIONS):
        joint = likelihood * prior
        updated = (joint / joint.sum(dim=1, keepdim=True)).mean(dim=0)
        change = (updated - prior).abs().max()
        prior = updated
        if change < TOLERANCE:
            break
    _warn_of_unknown(prior, likelihood)
    return prior


def _warn_of_unknown(prior: Tensor, likelihood: Tensor) -> None:
    """Warn of estimated frequencies that are less than two standard errors.

    Args:
        prior: ``(K,)`` frequencies.
        likelihood: ``(N, K)`` likelihoods of the classes, up to a factor of each row.
    """
    ratio = likelihood / (likelihood @ prior)[:, None]
    errors = (1 - prior) / (ratio - 1).square().sum(dim=0).sqrt()
    for index in (prior < DISTINCT * errors).nonzero().flatten().tolist():
        warn(
            f'the frequency of class {index}, {100 * prior[index]:.2f} %, is not told from 0 by '
            f'{len(likelihood):,} predictions: its standard error is {100 * errors[index]:.2f} '
            'points. Give the frequency that you know, or estimate it from more predictions'
        )


def class_rows(probs: Array) -> Tensor:
    """Return probabilities of all classes as rows ``(M, K)`` float64; K is at least 2."""
    values = as_floats('probs', probs).double()
    if not values.numel():
        raise UserError(f'probs have no prediction, got the shape {tuple(values.shape)}')
    if values.ndim == 1:
        values = values[:, None]
    if values.shape[1] == 1:
        check_range(values, 'probs')
    else:
        check_probabilities(values.movedim(1, 0), 'probs')
    rows = values.movedim(1, -1).flatten(0, -2)
    if rows.shape[1] == 1:
        return torch.cat([1 - rows, rows], dim=1)
    return rows


def check_class_prior(name: str, prior: Any, *, num_classes: int | None = None) -> Tensor:
    """Return frequencies of classes, ``(K,)`` float64, or raise a UserError.

    Args:
        name: Their name in the error.
        prior: Positive numbers that sum to one.
        num_classes: K; None for any number from two on.
    """
    values = as_tensor(name, prior).double().cpu()
    if values.ndim != 1 or len(values) < 2:
        raise UserError(
            f'{name} must be a frequency of each class, such as [0.9, 0.1], got {prior!r}'
        )
    if num_classes is not None and len(values) != num_classes:
        raise UserError(
            f'{name} must have a frequency of each of {num_classes} classes, got {len(values)}'
        )
    total = values.sum().item()
    if not (values > 0).all() or abs(total - 1) > SUM_TOLERANCE:
        raise UserError(
            f'{name} must be frequencies above 0 that sum to 1, got {values.tolist()}, which sum '
            f'to {total:.4g}'
        )
    return values / total
