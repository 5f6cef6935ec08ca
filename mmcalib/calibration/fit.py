"""The scaling of held-out predictions: given, or chosen by its cross-validated likelihood."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmcalib.calibration.choose import (
    LEAST_GROUPS,
    NONE,
    choose_method,
    helps_few_groups,
    methods_for,
    scaler_for_head,
)
from mmcalib.calibration.cross_fit import fit_scaler
from mmcalib.calibration.held_out import HeldOut
from mmcalib.errors import UserError
from mmcalib.posthoc.affine import TemperatureScaler
from mmcalib.posthoc.class_prior import (
    WITH_SHIFT,
    check_class_prior,
    check_has_shift,
    shift_class_prior,
)
from mmcalib.posthoc.masked_classes import check_no_masked_class
from mmcalib.posthoc.methods import SCALERS
from mmcalib.posthoc.per_label import Scaler, ScalerPerLabel
from mmcalib.posthoc.scaler import LogitScaler
from mmcalib.predictions.arrays import Array, as_tensor
from mmcalib.predictions.image_predictions import ImagePredictions
from mmcalib.tensors import MOST_EXAMPLES


@dataclass(frozen=True)
class Fitted:
    """A scaling that was fitted to all predictions.

    Attributes:
        scaler: The scaling of the model; None if the choice fell on no scaling.
        unshifted: The scaling without a shift to other frequencies of the classes.
        errors: The ``standard_error`` of a temperature, over groups, and the ``sampling_error``,
            the part of it that is due to the draw; of several labels the ``standard_errors`` of
            each; empty for other methods, and for a shifted scaling.
        candidates: The methods that were compared, see
            :func:`~mmcalib.calibration.choose.choose_method`.
        class_prior: The frequencies of the classes in use, ``(K,)``; None without a shift.
    """

    scaler: Scaler | None
    unshifted: Scaler | None
    errors: dict[str, Any] = field(default_factory=dict)
    candidates: list[dict] = field(default_factory=list)
    class_prior: list[float] | None = None


def checked_batches(
    batches: Iterable[ImagePredictions],
    method: str | LogitScaler | None,
    class_prior: Array | None = None,
) -> Iterator[ImagePredictions]:
    """Yield batches, and refuse at once what :func:`fit_scaling` would, before the rest is read.

    Args:
        batches: The predictions of a head.
        method: See :func:`mmcalib.calibrate`.
        class_prior: As for :func:`fit_scaling`.

    Raises:
        UserError: For a method that does not take such a head or masked classes, and frequencies
            that are not of its classes.
    """
    for batch in batches:
        scaler = scaler_for_head(method, batch)
        if class_prior is not None:
            if batch.several_labels:
                raise UserError(
                    'class_prior is of one label: calibrate each label by itself, with '
                    'logits=lambda output: output[:, i]'
                )
            check_class_prior('class_prior', class_prior, num_classes=batch.num_classes)
            if scaler is not None:
                check_has_shift(scaler)
        if scaler is not None and not scaler.takes_masked_classes and len(batch):
            check_no_masked_class(batch.logits, scaler.method)
        yield batch


def fit_scaling(
    data: HeldOut,
    method: str | LogitScaler | None,
    class_prior: Array | None = None,
) -> Fitted:
    """Fit a scaling to all predictions, and shift it to other frequencies of the classes.

    Args:
        data: The predictions.
        method: See :func:`mmcalib.calibrate`.
        class_prior: The frequencies of the classes in use, ``(K,)``; None if they are those of the
            held-out data.

    Raises:
        UserError: If the data determine no scaling, or lack a class that has a frequency.
    """
    scaler = scaler_for_head(method, data.draw.rows)
    candidates: list[dict] = []
    if scaler is None:
        shifts_prior = class_prior is not None
        scaler, candidates = choose_scaler(data, shifts_prior=shifts_prior)
    errors = {}
    if scaler is not None:
        scaler = fit_scaler(scaler, data.rows)
        errors = temperature_errors(scaler, data)
    if class_prior is None:
        return Fitted(scaler, scaler, errors, candidates)
    shifted = shift_scaler(scaler, class_prior, data.draw.labels)
    prior = as_tensor('class_prior', class_prior).tolist()
    return Fitted(shifted, scaler, candidates=candidates, class_prior=prior)


def choose_scaler(data: HeldOut, *, shifts_prior: bool) -> tuple[Scaler | None, list[dict]]:
    """Return the scaler of the chosen method, None for no scaling, and the candidates."""
    rows = data.rows
    methods = methods_for(
        rows.logits.shape[1], num_groups=data.groups.count, pixels=data.draw.pixels
    )
    if shifts_prior:
        methods = [method for method in methods if issubclass(SCALERS[method], WITH_SHIFT)]
    method, candidates = choose_method(data, methods)
    if data.groups.count < LEAST_GROUPS and not rows.several_labels:
        method = NONE
        scaler = fit_scaler(TemperatureScaler(), rows)
        error = temperature_errors(scaler, data).get('standard_error', math.inf)
        if helps_few_groups(scaler.temperature_, error):
            method = 'temperature'
    return None if method == NONE else scaler_for_head(method, rows), candidates


def shift_scaler(scaler: LogitScaler | None, class_prior: Array, labels: Tensor) -> LogitScaler:
    """Return a scaling, or none, shifted from the frequencies of labels ``(M,)`` to others."""
    if scaler is None:
        scaler = TemperatureScaler.from_parameters({'temperature': 1.0})
    num_classes = len(as_tensor('class_prior', class_prior))
    frequencies = torch.bincount(labels, minlength=num_classes).double() / len(labels)
    if (frequencies == 0).any():
        missing = (frequencies == 0).nonzero()[:, 0].tolist()
        raise UserError(
            f'class_prior needs a label of each class in the held-out data, and there is none of '
            f'{missing[:MOST_EXAMPLES]}'
        )
    return shift_class_prior(scaler, class_prior, frequencies)


def temperature_errors(scaler: Scaler, data: HeldOut) -> dict[str, Any]:
    """Return the standard error of a temperature, and the part of it that is due to the draw.

    Of several labels, return the standard error of each.
    """
    if scaler.get_params().get('criterion') != 'nll':  # A temperature alone has one.
        return {}
    rows = data.rows
    if isinstance(scaler, ScalerPerLabel):
        return {'standard_errors': errors_of_labels(scaler, rows)}
    standard_error = scaler.standard_error(rows.logits, rows.labels, rows.images)
    if math.isnan(standard_error):  # There is one group, or the temperature is at its bound.
        return {}
    share_not_drawn = 1 - len(data.draw) / data.draw.population
    return {
        'standard_error': standard_error,
        'sampling_error': scaler.standard_error(rows.logits, rows.labels) * share_not_drawn**0.5,
    }


def errors_of_labels(scaler: ScalerPerLabel, rows: ImagePredictions) -> list[float]:
    """Return the standard error of the temperature of each label.

    It is NaN for a label that takes the scaling of all labels together, and for a temperature at
    its bound.
    """
    errors = []
    for label, column in enumerate(rows.split_labels()):
        valid = column.valid_rows()
        error = math.nan
        if label not in scaler.shared_labels:
            label_scaler = scaler.scalers[label]
            error = label_scaler.standard_error(valid.logits, valid.labels, valid.images)
        errors.append(error)
    return errors
