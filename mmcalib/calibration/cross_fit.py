"""Folds of independent groups: each prediction is scored by a scaling that missed its fold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from mmcalib.calibration.held_out import HeldOut
from mmcalib.errors import UserError
from mmcalib.posthoc.affine import TemperatureScaler
from mmcalib.posthoc.fit_rows import nll_derivatives, read_rows
from mmcalib.posthoc.per_label import LEAST_IMAGES, Scaler, ScalerPerLabel
from mmcalib.posthoc.scaler import LogitScaler
from mmcalib.posthoc.temperature_search import best_temperature, temperature_of_kept_rows
from mmcalib.predictions.image_predictions import ImagePredictions
from mmcalib.predictions.progress import progress


@dataclass(frozen=True)
class Scalings:
    """The scalings that score images.

    Attributes:
        scalers: The scaling fitted without each fold; or the one that scores all images.
        fold_of_image: The fold of each image by its index, ``(n,)`` int64; None without folds.
    """

    scalers: list[Scaler]
    fold_of_image: Tensor | None = None


def score_by_fit(scaler: Scaler | None) -> Scalings:
    """Score each image by the scaling that was fitted to all; by none if this is None."""
    return Scalings([scaler or TemperatureScaler.from_parameters({'temperature': 1.0})])


def cross_fit(scaler: Scaler | None, data: HeldOut) -> Scalings:
    """Score each image by a scaling that was fitted without its fold.

    Args:
        scaler: The scaling that was fitted to all predictions; None for no scaling.
        data: The predictions.

    Raises:
        UserError: If there is one group, or the predictions without a fold determine no scaling.
    """
    if scaler is None:
        return score_by_fit(scaler)
    method = scaler.scaler if isinstance(scaler, ScalerPerLabel) else scaler
    scalers = fit_folds(method, data, similar=scaler, shown=True)
    return Scalings(scalers, data.folds[data.groups.of_image])


def fit_scaler(scaler: LogitScaler, rows: ImagePredictions) -> Scaler:
    """Return a scaler that is fitted to rows, whose images are the groups.

    Args:
        scaler: The method and its options.
        rows: The predictions; of several labels, each gets a scaler.
    """
    if rows.several_labels:
        return fit_labels(scaler, rows)
    fitted = deepcopy(scaler)
    fitted.fit_unchecked(rows.logits, rows.labels, rows.images)
    return fitted


def fit_labels(scaler: LogitScaler, rows: ImagePredictions) -> ScalerPerLabel:
    """Fit a scaler to each label; one with few images takes that of all labels together.

    So does a label whose own scaling would reverse the order of its predictions.
    """
    scalers: list[LogitScaler | None] = []
    for column in rows.split_labels():
        valid = column.valid_rows()
        images_per_value = torch.bincount(valid.labels, minlength=2)
        has_enough = images_per_value.min() >= LEAST_IMAGES
        fitted = fit_scaler(scaler, valid) if has_enough else None
        if fitted is not None and fitted.order_problem(valid.logits, valid.labels) is not None:
            fitted = None
        scalers.append(fitted)
    shared_labels = [label for label, fitted in enumerate(scalers) if fitted is None]
    if shared_labels:
        shared_scaler = fit_scaler(scaler, rows.pool_labels())
        scalers = [fitted or shared_scaler for fitted in scalers]
    return ScalerPerLabel(scalers, shared_labels)


def fit_folds(
    scaler: LogitScaler,
    data: HeldOut,
    *,
    similar: Scaler | None = None,
    shown: bool = False,
) -> list[Scaler]:
    """Return a scaler for each fold, fitted to the predictions of all others.

    Args:
        scaler: The method and its options.
        data: The predictions.
        similar: A scaler of the same method that was fitted to all predictions, at whose optimum
            the fits start; None if there is none. Then all but the first start at the one before.
        shown: Whether a terminal shows a progress bar.

    Raises:
        UserError: If there is one group, or the predictions without a fold determine no scaling.
    """
    fold = data.folds[data.rows.images]
    num_folds = int(data.folds.max()) + 1
    numbers: Iterable[int] = range(num_folds)
    if shown:
        numbers = progress(numbers, 'Fitting without each fold', transient=True)
    scalers: list[Scaler] = []
    if data.rows.several_labels or not scaler.starts_at_temperature:
        for number in numbers:
            with named_fold(number, num_folds):
                scalers.append(fit_scaler(scaler, data.rows.select(fold != number)))
        return scalers
    rows = read_rows(data.rows.logits, data.rows.labels, data.rows.images)
    temperature = best_temperature(rows) if similar is None else similar.optimum.temperature
    derivatives = nll_derivatives(rows, 1 / temperature)
    for number in numbers:
        is_kept = fold != number
        fold_scaler = deepcopy(scaler)
        with named_fold(number, num_folds):
            fold_temperature = temperature_of_kept_rows(rows, is_kept, temperature, derivatives)
            fold_scaler.fit_kept_rows(rows, is_kept, fold_temperature, similar)
        scalers.append(fold_scaler)
        similar = similar or fold_scaler
    return scalers


@contextmanager
def named_fold(number: int, num_folds: int) -> Iterator[None]:
    """Name the fold that was left out in a UserError."""
    try:
        yield
    except UserError as error:
        raise UserError(f'without fold {number + 1} of {num_folds}: {error}') from error
