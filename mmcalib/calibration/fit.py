"""From drawn predictions to a scaling: chosen, fitted and cross-fitted."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from math import isnan
from typing import Any

import torch
from torch import Tensor

from mmcalib.calibration.choose import (
    LEAST_GROUPS,
    NONE,
    choose_method,
    helps_few_groups,
    methods_for,
    scaler_for,
)
from mmcalib.calibration.draw import Draw
from mmcalib.calibration.folds import assign_folds, fit_folds, fit_scaler
from mmcalib.calibration.groups import Groups
from mmcalib.errors import UserError
from mmcalib.posthoc.affine import TemperatureScaler
from mmcalib.posthoc.class_prior import WITH_SHIFT
from mmcalib.posthoc.fit_rows import nll_derivatives, read_rows
from mmcalib.posthoc.methods import SCALERS
from mmcalib.posthoc.per_label import Scaler, ScalerPerLabel
from mmcalib.posthoc.scaler import LogitScaler
from mmcalib.posthoc.temperature_search import temperature_error

# Predictions times logits, or times their square for a matrix: at most 30 s a fit on one core.
CHEAP = 1e8


@dataclass
class Fit:
    """A fitted scaling, and the scalings that score predictions that it has seen.

    Attributes:
        scaler: The scaling fitted to all predictions; None if the choice fell on no scaling.
        scalers: The scaling fitted without each fold; or the one fitted to all.
        fold_of_group: The fold of each group, ``(G,)`` int64; None without folds.
        candidates: The methods that were compared, see
            :func:`~mmcalib.calibration.choose.choose_method`.
        errors: The ``standard_error`` of a temperature, over groups, and the ``sampling_error``,
            the part of it that is due to the draw; of several labels the ``standard_errors`` of
            each; empty for other methods.
    """

    scaler: Scaler | None
    scalers: list[Scaler]
    fold_of_group: Tensor | None = None
    candidates: list[dict] = field(default_factory=list)
    errors: dict[str, Any] = field(default_factory=dict)

    @property
    def num_folds(self) -> int:
        """The number of folds; 0 without a cross-fit."""
        return 0 if self.fold_of_group is None else len(self.scalers)


def fit_scaling(
    draw: Draw,
    groups: Groups,
    scaler: Scaler | None,
    *,
    pixels: bool,
    cross_fit: bool | str = True,
    shifts_prior: bool = False,
    seed: int = 0,
) -> Fit:
    """Fit a scaling to predictions of independent groups.

    Args:
        draw: The predictions.
        groups: Their groups.
        scaler: A method with its options, not fitted; None to choose a method by its
            cross-validated likelihood.
        pixels: Whether the predictions are pixels.
        cross_fit: Whether to fit a scaling without each fold too, so that each image is scored by
            a scaling that has not seen it; 'if cheap' where this takes no longer than about a
            minute, and each fold leaves data that determine a scaling.
        shifts_prior: Whether the scaling will be shifted to other frequencies of the classes, for
            which not every method can be chosen.
        seed: The seed of the folds.

    Raises:
        UserError: If the data, or those without a fold, determine no scaling.
    """
    fold_of_group = None
    if groups.count > 1 or cross_fit is True or scaler is None:
        fold_of_group = assign_folds(groups.count, seed=seed, run_of_group=groups.run_of_group)
    candidates: list[dict] = []
    if scaler is None:
        method, candidates = _chosen_method(
            draw, groups, fold_of_group, pixels=pixels, shifts_prior=shifts_prior
        )
        if method == NONE:
            unchanged = TemperatureScaler.from_parameters({'temperature': 1.0})
            return Fit(scaler=None, scalers=[unchanged], candidates=candidates)
        scaler = scaler_for(method, draw)
    fitted = fit_scaler(deepcopy(scaler), draw, groups.index)
    scalers = None
    if cross_fit is True:
        scalers = fit_folds(scaler, draw, groups.index, fold_of_group, similar=fitted, shown=True)
    elif cross_fit and fold_of_group is not None and is_cheap(scaler, draw):
        with suppress(UserError):  # A class may be in few groups, all of one fold.
            scalers = fit_folds(
                scaler, draw, groups.index, fold_of_group, similar=fitted, shown=True
            )
    if scalers is None:
        scalers = [fitted]
        fold_of_group = None
    return Fit(
        scaler=fitted,
        scalers=scalers,
        fold_of_group=fold_of_group,
        candidates=candidates,
        errors=temperature_errors(fitted, draw, groups.index),
    )


def _chosen_method(
    draw: Draw, groups: Groups, fold_of_group: Tensor, *, pixels: bool, shifts_prior: bool
) -> tuple[str, list[dict]]:
    """Return the name of the chosen method, and the candidates."""
    num_logits = 1 if draw.rows.several_labels else draw.logits.shape[1]
    methods = methods_for(num_logits, num_groups=groups.count, pixels=pixels)
    if shifts_prior:
        methods = [method for method in methods if issubclass(SCALERS[method], WITH_SHIFT)]
    method, candidates = choose_method(
        draw,
        groups.index,
        fold_of_group,
        methods,
        pixels=pixels,
        run_of_group=groups.run_of_group,
    )
    if groups.count >= LEAST_GROUPS or draw.rows.several_labels:
        return method, candidates
    scaler = fit_scaler(TemperatureScaler(), draw, groups.index)
    error = temperature_errors(scaler, draw, groups.index).get('standard_error', float('inf'))
    if helps_few_groups(scaler.temperature_, error):
        return 'temperature', candidates
    return NONE, candidates


def is_cheap(scaler: Scaler, draw: Draw) -> bool:
    """Return whether a scaling is fitted in seconds.

    It asks for sizes and not for times, since all processes have to agree.
    """
    num_predictions, num_logits = draw.logits.shape
    axes = max(scaler.learned.values()) if isinstance(scaler, LogitScaler) else 0
    return num_predictions * num_logits ** min(max(axes, 1), 2) <= CHEAP


def temperature_errors(scaler: Scaler, draw: Draw, group_index: Tensor) -> dict[str, Any]:
    """Return the standard error of a temperature, and the part of it that is due to the draw.

    Of several labels, return the standard error of each.
    """
    method = scaler.scaler if isinstance(scaler, ScalerPerLabel) else scaler
    if not isinstance(method, TemperatureScaler) or method.criterion != 'nll':
        return {}
    if isinstance(scaler, ScalerPerLabel):
        errors = scaler.standard_errors(draw.logits, draw.labels, group_index)
        return {'standard_errors': errors}
    if scaler.at_bound_:
        return {}
    temperature = scaler.temperature_
    rows = read_rows(draw.logits, draw.labels, group_index)
    slopes, curvatures = nll_derivatives(rows, 1 / temperature)
    standard_error = temperature_error(temperature, slopes, curvatures, rows.images)
    if isnan(standard_error):  # There is one group.
        return {}
    each_row = torch.arange(len(rows), device='cpu')
    independent_error = temperature_error(temperature, slopes, curvatures, each_row)
    share_not_drawn = 1 - len(draw) / draw.population
    return {
        'standard_error': standard_error,
        'sampling_error': independent_error * share_not_drawn**0.5,
    }
