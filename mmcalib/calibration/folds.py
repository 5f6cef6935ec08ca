"""Which images are independent, and folds of them: each is scored by a scaling that missed it."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mmcalib.calibration.draw import DrawnPredictions
from mmcalib.errors import UserError
from mmcalib.posthoc.logits import with_other_class
from mmcalib.posthoc.scaler import LogitScaler

FOLDS = 5
# Standard errors from 0: one of 160 independent splits goes beyond it by chance.
ALIKE = 2.5


def folds_of_groups(count: int, *, seed: int) -> Tensor:
    """Return the fold of each group, of nearly equal sizes, drawn by a seed.

    Returns:
        ``(count,)`` int64 in [0, 5), or less if there are fewer.

    Raises:
        UserError: If there is only one.
    """
    if count < 2:
        raise UserError(
            f'{count} image, or group of images, cannot be divided into parts, each of which is '
            'scored by a scaling fitted on the others: calibrate on more'
        )
    fold = np.random.RandomState(seed).permutation(count) % FOLDS
    return torch.from_numpy(fold.astype(np.int64))


def fit_folds(scaler: LogitScaler, drawn: DrawnPredictions, fold_of: Tensor) -> list[LogitScaler]:
    """Return a scaler for each fold, fitted on the predictions of all others.

    Args:
        scaler: The method and its options.
        drawn: Predictions of all images, or groups.
        fold_of: Of :func:`folds_of_groups`.

    Raises:
        ValueError: If the predictions without a fold determine no scaling.
    """
    folds = int(fold_of.max()) + 1
    scalers = [deepcopy(scaler) for _ in range(folds)]
    for fold, own in enumerate(scalers):
        try:
            drawn.fit(own, fold_of != fold)
        except UserError as error:
            raise UserError(f'without fold {fold + 1} of {folds}: {error}') from error
    return scalers


def independent_groups(drawn: DrawnPredictions, group_of: Tensor) -> Tensor:
    """Return the group of each image, of groups that are independent.

    Where those next to each other are alike, as the frames of a video are, they are not: then the
    groups are 5 runs of neighbouring images, one for each fold of a cross-fit.

    Args:
        drawn: Predictions of the images.
        group_of: ``(n,)`` int64, numbered in the order of the first images.
    """
    count = int(group_of.max()) + 1
    by_group = replace(drawn, images=group_of[drawn.images])
    if count <= FOLDS or not neighbours_alike(by_group):
        return group_of
    return group_of * FOLDS // count


def neighbours_alike(drawn: DrawnPredictions) -> bool:
    r"""Return whether images in order have errors more like their neighbours' than others'.

    Of each image, the error :math:`x` is the mean of probabilities less the true classes, without
    what the frequencies of its classes explain (by ridge regression): images may be in the order
    of their classes. For independent images

    .. math:: z = \sum_g x_g \cdot x_{g+1} \Big/ \sqrt{\sum_g (x_g \cdot x_{g+1})^2}

    is about normal.

    Args:
        drawn: Predictions by images, or by groups.
    """
    place = drawn.images.unique(return_inverse=True)[1]
    error = with_other_class(drawn.logits).softmax(dim=1)
    rows, one = torch.arange(len(place), device='cpu'), error.new_ones(1)
    error[rows, drawn.labels] -= 1
    count, size = torch.bincount(place)[:, None], error.shape[1]
    classes = error.new_zeros(len(count), size)
    classes.index_put_((place, drawn.labels), one, accumulate=True)
    error = error.new_zeros(len(count), size).index_add_(0, place, error)
    error, classes = error / count, classes / count
    error, classes = error - error.mean(dim=0), classes - classes.mean(dim=0)
    # Of a tenth of an image's weight: few images do not determine the effect of every class.
    gram = classes.T @ classes + 0.1 * torch.eye(size, dtype=error.dtype, device='cpu')
    error = error - classes @ torch.linalg.solve(gram, classes.T @ error)
    products = (error[1:] * error[:-1]).sum(dim=1).double()
    return bool(products.sum() > ALIKE * products.square().sum().sqrt())
