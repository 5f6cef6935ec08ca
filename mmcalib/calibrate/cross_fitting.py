"""Cross-fitting: each image is scored by a scaling that was fitted without it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor

from mmcalib.posthoc import LogitScaler
from mmcalib.posthoc.sampled_logits import DrawnPredictions

FOLDS = 5


def folds_of_images(dataset: object, *, seed: int) -> Tensor:
    """Return the fold of each image, of nearly equal sizes, drawn by a seed.

    Images of one group, the ``group`` of their ``get_data_info``, are never apart: scans of one
    patient, say. So is an image that a ``RepeatDataset`` has twice.

    Args:
        dataset: The images, in the order of the loader.
        seed: Seed of the draw.

    Returns:
        ``(n,)`` int64 in [0, 5).

    Raises:
        ValueError: If there are fewer than 5 images or groups.
    """
    number = np.arange(len(dataset))
    if hasattr(dataset, 'get_data_info'):
        groups = [_group(dataset.get_data_info(index), index) for index in number.tolist()]
        known = {group: place for place, group in enumerate(dict.fromkeys(groups))}
        number = np.array([known[group] for group in groups])
    count = number.max(initial=-1) + 1
    if count < FOLDS:
        what = 'images' if count == len(dataset) else 'groups of images'
        raise ValueError(
            f'{count} {what} cannot be divided into {FOLDS} parts, each of which is scored by a '
            f'scaling fitted on the others: calibrate on {FOLDS} or more, or give --holdout SHARE'
        )
    fold = np.random.RandomState(seed).permutation(count) % FOLDS
    return torch.from_numpy(fold[number].astype(np.int64))


def _group(info: Mapping, index: int) -> Hashable:
    """Return what the images have in common that are in one fold."""
    return info.get('group', (info.get('img_path'), info.get('sample_idx', index)))


def fit_folds(
    scaler: LogitScaler,
    drawn: DrawnPredictions,
    fold_of: Tensor,
) -> list[LogitScaler]:
    """Return a scaler for each fold, fitted on the predictions of all others.

    Args:
        scaler: The method and its options.
        drawn: Predictions of all images.
        fold_of: Of :func:`folds_of_images`.

    Raises:
        ValueError: If the predictions without a fold determine no scaling.
    """
    fitted = []
    for fold in range(FOLDS):
        others = fold_of != fold
        own = deepcopy(scaler)
        try:
            drawn.fit(own, others)
        except ValueError as error:
            raise ValueError(f'without fold {fold + 1} of {FOLDS}: {error}') from error
        fitted.append(own)
    return fitted
