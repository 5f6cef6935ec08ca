"""From drawn predictions to a scaling, chosen and cross-fitted: what every calibration does."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from math import isnan

from torch import Tensor

from mmcalib.posthoc.affine import TemperatureScaler
from mmcalib.posthoc.choose import NONE, choose_method, methods_for
from mmcalib.posthoc.draw import DrawnPredictions
from mmcalib.posthoc.folds import fit_folds, folds_of_groups
from mmcalib.posthoc.methods import SCALERS
from mmcalib.posthoc.per_label import ScalerPerLabel
from mmcalib.posthoc.scaler import LogitScaler

Scaler = LogitScaler | ScalerPerLabel


@dataclass
class FittedScaling:
    """A scaling, and what measures it.

    Attributes:
        scaler: Fitted to all; None if the choice fell on no scaling.
        scalers: What scores predictions: the one fitted to all, or of each fold, without it.
        fold_of: ``(n,)`` int64, the fold of each group; None if there is one scaler.
        candidates: What was compared, see :func:`~mmcalib.posthoc.choose.choose_method`.
        errors: The ``standard_error`` of a temperature, over groups, and the ``sampling_error``,
            the part of it that is due to the draw; of other methods nothing.
    """

    scaler: Scaler | None
    scalers: list[Scaler]
    fold_of: Tensor | None = None
    candidates: list[dict] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)


def fit_scaling(
    drawn: DrawnPredictions,
    scaler: Scaler | None,
    *,
    pixels: bool,
    cross_fit: bool = True,
    seed: int = 0,
) -> FittedScaling:
    """Fit a scaling to predictions of images, or of groups that are independent.

    Args:
        drawn: The predictions.
        scaler: Not fitted; None to choose a method by its cross-validated likelihood.
        pixels: Whether they are pixels.
        cross_fit: Whether to fit one without each fold too.
        seed: Of the folds.

    Raises:
        ValueError: For data that determine no scaling.
    """
    groups, fold_of, candidates = int(drawn.images.max()) + 1, None, []
    if cross_fit or scaler is None:
        fold_of = folds_of_groups(groups, seed=seed)
    if scaler is None:
        methods = methods_for(drawn.logits.shape[1], groups=groups, pixels=pixels)
        chosen, candidates = choose_method(drawn, fold_of, methods, pixels=pixels)
        if chosen == NONE:
            same = SCALERS['temperature'].from_parameters({'temperature': 1.0})
            return FittedScaling(None, [same], candidates=candidates)
        scaler = SCALERS[chosen]()
    fitted = drawn.fit(deepcopy(scaler))
    scalers = fit_folds(scaler, drawn, fold_of) if cross_fit else [fitted]
    fold_of = fold_of if cross_fit else None
    return FittedScaling(fitted, scalers, fold_of, candidates, standard_errors(fitted, drawn))


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
