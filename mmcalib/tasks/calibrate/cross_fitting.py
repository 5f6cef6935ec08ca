"""Cross-fitting: each image is scored by a scaling that was fitted without its group."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import torch
from torch import Tensor

from mmcalib.posthoc import LogitScaler
from mmcalib.posthoc.draw import DrawnPredictions

FOLDS = 5


def folds_of_groups(count: int, *, seed: int) -> Tensor:
    """Return the fold of each group, of nearly equal sizes, drawn by a seed.

    Args:
        count: How many groups there are, or images.
        seed: Seed of the draw.

    Returns:
        ``(count,)`` int64 in [0, 5), or less if there are fewer.

    Raises:
        ValueError: If there is only one.
    """
    if count < 2:
        raise ValueError(
            f'{count} image, or group of images, cannot be divided into parts, each of which is '
            'scored by a scaling fitted on the others: calibrate on more, or on other images than '
            'those of the test'
        )
    fold = np.random.RandomState(seed).permutation(count) % FOLDS
    return torch.from_numpy(fold.astype(np.int64))


def fit_folds(
    scaler: LogitScaler,
    drawn: DrawnPredictions,
    fold_of: Tensor,
) -> list[LogitScaler]:
    """Return a scaler for each fold, fitted on the predictions of all others.

    Args:
        scaler: The method and its options.
        drawn: Predictions of all images, or groups.
        fold_of: Of :func:`folds_of_groups`.

    Raises:
        ValueError: If the predictions without a fold determine no scaling.
    """
    fitted = []
    folds = int(fold_of.max()) + 1
    for fold in range(folds):
        others = fold_of != fold
        own = deepcopy(scaler)
        try:
            drawn.fit(own, others)
        except ValueError as error:
            raise ValueError(f'without fold {fold + 1} of {folds}: {error}') from error
        fitted.append(own)
    return fitted
