"""Folds of independent groups: each prediction is scored by a scaling that missed its fold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor

from mmcalib.calibration.draw import Draw
from mmcalib.errors import UserError
from mmcalib.posthoc.fit_rows import nll_derivatives, read_rows
from mmcalib.posthoc.per_label import Scaler, ScalerPerLabel
from mmcalib.posthoc.temperature_search import best_temperature, temperature_of_kept_rows
from mmcalib.predictions.progress import progress

FOLDS = 5


def assign_folds(num_groups: int, *, seed: int, run_of_group: Tensor | None = None) -> Tensor:
    """Return the fold of each group, of nearly equal sizes, drawn by a seed.

    Args:
        num_groups: The number of groups.
        seed: The seed.
        run_of_group: The run of neighbours that each group is in, ``(G,)`` int64. The folds are
            then whole runs and not drawn, so that neighbours are in two folds at the ends of runs
            alone; None to draw groups.

    Returns:
        ``(num_groups,)`` int64 in [0, 5), or less if there are fewer.

    Raises:
        UserError: If there is only one group.
    """
    if num_groups < 2:
        raise UserError(
            'all valid predictions are of one image, or of one of the given groups, so no scaling '
            'can be fitted on others: calibrate on more images'
        )
    if run_of_group is not None:
        return run_of_group % FOLDS
    fold = np.random.RandomState(seed).permutation(num_groups) % FOLDS
    return torch.from_numpy(fold.astype(np.int64))


def fit_scaler(
    scaler: Scaler, draw: Draw, group_index: Tensor, is_kept: Tensor | None = None
) -> Scaler:
    """Fit a scaler to drawn predictions, and return it.

    Args:
        scaler: The method and its options.
        draw: The predictions.
        group_index: The group of each prediction, ``(M,)`` int64.
        is_kept: A mask ``(M,)`` of the predictions to fit to; None for all.
    """
    if is_kept is None:
        return scaler.fit(draw.logits, draw.labels, group_index)
    return scaler.fit(draw.logits[is_kept], draw.labels[is_kept], group_index[is_kept])


def fit_folds(
    scaler: Scaler,
    draw: Draw,
    group_index: Tensor,
    fold_of_group: Tensor,
    *,
    similar: Scaler | None = None,
    shown: bool = False,
) -> list[Scaler]:
    """Return a scaler for each fold, fitted to the predictions of all others.

    Args:
        scaler: The method and its options.
        draw: The predictions.
        group_index: The group of each prediction, ``(M,)`` int64.
        fold_of_group: The fold of each group, see :func:`assign_folds`.
        similar: A scaler of the same method that was fitted to all predictions, at whose optimum
            the fits start; None if there is none. Then all but the first start at the one before.

        shown: Whether a terminal shows a progress bar.

    Raises:
        UserError: If the predictions without a fold determine no scaling.
    """
    fold = fold_of_group[group_index]
    num_folds = int(fold_of_group.max()) + 1
    numbers: Iterable[int] = range(num_folds)
    if shown:
        numbers = progress(numbers, 'Fitting without each fold', transient=True)
    scalers: list[Scaler] = []
    if isinstance(scaler, ScalerPerLabel) or not scaler.starts_at_temperature:
        for number in numbers:
            with named_fold(number, num_folds):
                scalers.append(fit_scaler(deepcopy(scaler), draw, group_index, fold != number))
        return scalers
    rows = read_rows(draw.logits, draw.labels, group_index)
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
