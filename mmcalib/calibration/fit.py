"""From drawn predictions to a scaling, chosen and cross-fitted: what every calibration does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from math import isnan

import torch
from torch import Tensor

from mmcalib.calibration.choose import (
    LEAST_GROUPS,
    NONE,
    choose_method,
    helps_few_groups,
    methods_for,
)
from mmcalib.calibration.draw import DrawnPredictions
from mmcalib.calibration.effect import predicted_of
from mmcalib.calibration.folds import fit_folds, folds_of_groups
from mmcalib.errors import UserError
from mmcalib.posthoc.affine import TemperatureScaler
from mmcalib.posthoc.methods import SCALERS
from mmcalib.posthoc.per_label import ScalerPerLabel
from mmcalib.posthoc.scaler import LogitScaler
from mmcalib.posthoc.temperature_search import INFORMATIVE
from mmcalib.texts import unlabelled_sentence

Scaler = LogitScaler | ScalerPerLabel

NO_INFORMATION = 'the logits carry no information about the labels'
SAME_ORDER = 'are the classes of the labels in the same order as those of the model?'
# So many predictions of one class as another are hardly so by chance.
CLEAR_COUNT = 5
# Predictions times logits, or times their square of a matrix: 30 s a fit at most on one core.
CHEAP = 1e8


@dataclass
class FittedScaling:
    """A scaling, and what measures it.

    Attributes:
        scaler: Fitted to all; None if the choice fell on no scaling.
        scalers: What scores predictions: the one fitted to all, or of each fold, without it.
        fold_of: ``(n,)`` int64, the fold of each group; None if there is one scaler.
        candidates: What was compared, see :func:`~mmcalib.calibration.choose.choose_method`.
        errors: The ``standard_error`` of a temperature, over groups, and the ``sampling_error``,
            the part of it that is due to the draw; of other methods nothing.
        information: See :func:`~mmcalib.posthoc.temperature_search.information`; None of several
            labels.
    """

    scaler: Scaler | None
    scalers: list[Scaler]
    fold_of: Tensor | None = None
    candidates: list[dict] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)
    information: float | None = None


def fit_scaling(
    drawn: DrawnPredictions,
    scaler: Scaler | None,
    *,
    pixels: bool,
    cross_fit: bool | str = True,
    seed: int = 0,
    smoke: bool = False,
) -> FittedScaling:
    """Fit a scaling to predictions of images, or of groups that are independent.

    Args:
        drawn: The predictions.
        scaler: Not fitted; None to choose a method by its cross-validated likelihood.
        pixels: Whether they are pixels.
        cross_fit: Whether to fit one without each fold too, so that each image is scored by a
            scaling that missed it; 'if cheap' where this takes no longer than about a minute, and
            there are folds whose others determine a scaling.
        seed: Of the folds.
        smoke: Whether the run only shows that all works, for which logits need no information.

    Raises:
        ValueError: For data that determine no scaling, see :func:`check_determined`.
    """
    information = drawn.information if drawn.labels.ndim == 1 else None
    check_determined(drawn, None if smoke else information, pixels=pixels)
    groups = int(drawn.images.max()) + 1
    fold_of = None
    if groups > 1 or cross_fit is True or scaler is None:
        fold_of = folds_of_groups(groups, seed=seed)
    candidates: list[dict] = []
    if scaler is None:
        methods = methods_for(drawn.logits.shape[1], groups=groups, pixels=pixels)
        chosen, candidates = choose_method(drawn, fold_of, methods, pixels=pixels)
        if groups < LEAST_GROUPS:
            chosen = choose_temperature(drawn)
        if chosen == NONE:
            same = SCALERS['temperature'].from_parameters({'temperature': 1.0})
            return FittedScaling(None, [same], candidates=candidates, information=information)
        scaler = SCALERS[chosen]()
    fitted = drawn.fit(deepcopy(scaler))
    scalers = [fitted]
    if cross_fit is True:
        scalers = fit_folds(scaler, drawn, fold_of)
    elif cross_fit and fold_of is not None and is_cheap(scaler, drawn):
        with suppress(UserError):  # Few groups may have a class in one of them alone.
            scalers = fit_folds(scaler, drawn, fold_of)
    if len(scalers) == 1:
        fold_of = None
    errors = standard_errors(fitted, drawn)
    return FittedScaling(fitted, scalers, fold_of, candidates, errors, information)


def choose_temperature(drawn: DrawnPredictions) -> str:
    """Return ``'temperature'`` if it is chosen by fewer than ten groups, else ``'none'``."""
    temperature = TemperatureScaler()
    drawn.fit(temperature)
    error = standard_errors(temperature, drawn).get('standard_error', float('inf'))
    return 'temperature' if helps_few_groups(temperature.temperature_, error) else NONE


def is_cheap(scaler: Scaler, drawn: DrawnPredictions) -> bool:
    """Return whether a scaling is fitted in seconds, of whatever processor, as all ranks ask."""
    count, num_logits = drawn.logits.shape
    axes = max(scaler.learned.values()) if isinstance(scaler, LogitScaler) else 0
    return count * num_logits ** min(max(axes, 1), 2) <= CHEAP


def check_determined(drawn: DrawnPredictions, information: float | None, *, pixels: bool) -> None:
    """Refuse predictions that determine no temperature, so that none is written that means nothing.

    Args:
        drawn: The predictions.
        information: See :func:`~mmcalib.posthoc.temperature_search.information`; None if it does
            not matter.
        pixels: Whether they are pixels.

    Raises:
        ValueError: If all labels are of one class, no prediction is wrong, the logits say less
            about the labels than equal ones, or classes are exchanged.
    """
    valid = drawn.labels >= 0
    labels = drawn.labels[valid]
    if not (labels != labels[0]).any():
        remedy = 'calibrate on data of several classes'
        if pixels:
            remedy += '; if masks have 0 and 255, which is left out, write 1 in its place'
        raise UserError(f'all labels are {int(labels[0])}: {remedy}')
    predicted = predicted_of(drawn.logits, drawn.labels)[valid]
    wrong = predicted != labels
    if not wrong.any():
        raise UserError('no prediction is wrong: calibrate on data that the model did not learn')
    if information is not None and information <= 0:
        accuracy = 100 * (1 - wrong.double().mean().item())
        raise UserError(
            f'{NO_INFORMATION} (accuracy {accuracy:.2f} %), so there is no temperature to fit: '
            f'{SAME_ORDER}'
        )
    if information is not None:
        exchanged = exchanged_classes(predicted, labels)
        if exchanged:
            shown = ', '.join(f'{true} as {other}' for true, other in exchanged.items())
            raise UserError(
                f'most labels of these classes are predicted as another: {shown}: {SAME_ORDER}'
            )


def exchanged_classes(predicted: Tensor, labels: Tensor) -> dict[int, int]:
    """Return the classes that are predicted as one another in a circle, as two that are exchanged.

    Each is predicted as the next one more than half of the time. A model does not learn that, but
    labels in another order show it.

    Args:
        predicted: ``(M,)`` predicted classes.
        labels: ``(M,)`` true classes.
    """
    size = int(max(predicted.max(), labels.max())) + 1
    counts = torch.bincount(labels * size + predicted, minlength=size * size).view(size, size)
    most, likeliest = counts.max(dim=1)
    is_clear = (2 * most > counts.sum(dim=1)) & (most >= CLEAR_COUNT)
    following = {k: int(likeliest[k]) for k in is_clear.nonzero()[:, 0].tolist()}
    exchanged = {}
    for start in following:
        place = following[start]
        path = [start]
        while place in following and place not in path:
            path.append(place)
            place = following[place]
        if place == start and len(path) > 1:
            exchanged[start] = following[start]
    return exchanged


def data_sentences(
    information: float | None, unlabelled: Sequence[object], accuracy: float
) -> Iterator[str]:
    """Yield what speaks against the data of a calibration.

    Args:
        information: See :attr:`FittedScaling.information`.
        unlabelled: Names or numbers of the classes without a label.
        accuracy: Of the predictions, in percent.
    """
    if information is not None and information < INFORMATIVE:
        yield (
            f'Warning: {NO_INFORMATION} beyond chance (accuracy {accuracy:.2f} %), so the '
            f'temperature means nothing: {SAME_ORDER}'
        )
    if unlabelled:
        yield unlabelled_sentence(unlabelled)


def standard_errors(scaler: Scaler, drawn: DrawnPredictions) -> dict[str, float]:
    """Return the standard error of a temperature, and the part of it that is due to the draw."""
    if not isinstance(scaler, TemperatureScaler) or scaler.criterion != 'nll':
        return {}
    error = scaler.standard_error(drawn.logits, drawn.labels, drawn.images)
    if isnan(error):  # at its bound, or of one group
        return {}
    of_draw = scaler.standard_error(drawn.logits, drawn.labels)
    left_out = 1 - len(drawn.labels) / drawn.population
    return {'standard_error': error, 'sampling_error': of_draw * left_out**0.5}
