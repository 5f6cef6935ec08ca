"""Groups of images that are independent of one another, given or recognised."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmcalib.calibration.draw import Draw
from mmcalib.calibration.folds import FOLDS
from mmcalib.calibration.source import Source
from mmcalib.posthoc.logits import with_other_class

# Standard errors from 0, beyond which one of 160 data sets of independent images is by chance.
ALIKE = 2.5


@dataclass(frozen=True)
class Groups:
    """The independent groups that images are of.

    Attributes:
        index: The group of each drawn prediction, ``(M,)`` int64 from 0 on.
        of_image: The group of each image by its index in the data, ``(n,)`` int64; 0 for images
            without a valid prediction, which are of no group.
        count: The number of groups.
        are_runs: Whether neighbouring images were alike, so that the groups are runs of them.
    """

    index: Tensor
    of_image: Tensor
    count: int
    are_runs: bool = False


def independent_groups(draw: Draw, source: Source, given_groups: Tensor | None) -> Groups:
    """Return the groups of images that are independent, of those that have a valid prediction.

    They are the given groups, otherwise the images. If groups, or images, next to each other are
    alike, as the frames of a video are, they are not independent: then the groups are 5 runs of
    neighbours, one for each fold of a cross-fit.

    Args:
        draw: The predictions.
        source: The source that they come from.
        given_groups: The group of each image by its index in the data, ``(n,)`` int64 numbered
            in the order of the first images; None if every image is a group.
    """
    numbers = draw.images if given_groups is None else given_groups[draw.images]
    index = numbers.unique(return_inverse=True)[1]
    of_image = _by_image(draw.images, index, draw.num_images)
    count = int(index.max()) + 1
    can_be_runs = source.in_order and count > FOLDS
    if can_be_runs and neighbours_alike(draw, of_image[draw.rows.images]):
        of_image = of_image * FOLDS // count
        return Groups(of_image[draw.rows.images], of_image, FOLDS, are_runs=True)
    if given_groups is None:
        # A loader that shuffles numbers its images by their content, so that the folds do not
        # depend on the order.
        numbers = source.image_numbers(draw.rows)
        if numbers is not None:
            of_image = _by_image(draw.rows.images, numbers, draw.num_images)
            count = int(numbers.max()) + 1
    return Groups(of_image[draw.rows.images], of_image, count)


def sort_by_group(draw: Draw, groups: Groups) -> tuple[Draw, Groups]:
    """Return the predictions in the order of their groups.

    The last digits of a sum depend on the order of its terms, so a loader that shuffles would
    otherwise give other ones.
    """
    return draw.sorted_by(groups.index), replace(groups, index=groups.index.sort().values)


def neighbours_alike(draw: Draw, index: Tensor) -> bool:
    r"""Return whether images in order have errors more like their neighbours' than others'.

    The error :math:`x` of an image is the mean of its probabilities less its true classes, without
    what the frequencies of its classes explain (by ridge regression), since images may be in the
    order of their classes. For independent images

    .. math:: z = \sum_g x_g \cdot x_{g+1} \Big/ \sqrt{\sum_g (x_g \cdot x_{g+1})^2}

    is about normal.

    Args:
        draw: The predictions.
        index: The image, or the group of images, of each prediction, ``(M,)`` int64 in the order
            of the data.
    """
    index = index.unique(return_inverse=True)[1]
    num_predictions = torch.bincount(index)[:, None]
    if draw.rows.several_labels:
        is_true = (draw.labels == 1).to(draw.logits.dtype)
        row_error = (draw.logits.sigmoid() - is_true).masked_fill(draw.labels < 0, 0.0)
        class_counts = is_true.new_zeros(len(num_predictions), is_true.shape[1])
        class_counts.index_add_(0, index, is_true)
    else:
        row_error = with_other_class(draw.logits).softmax(dim=1)
        num_classes = row_error.shape[1]
        row_error[torch.arange(len(index), device='cpu'), draw.labels] -= 1
        cells = index * num_classes + draw.labels
        class_counts = torch.bincount(cells, minlength=len(num_predictions) * num_classes)
        class_counts = class_counts.view(-1, num_classes).to(row_error.dtype)
    error_sums = row_error.new_zeros(class_counts.shape).index_add_(0, index, row_error)
    image_error = error_sums / num_predictions
    image_error = image_error - image_error.mean(dim=0)
    frequencies = class_counts / num_predictions
    frequencies = frequencies - frequencies.mean(dim=0)
    # A weak ridge, of a tenth of an image: few images do not determine the effect of a rare class.
    ridge = 0.1 * torch.eye(frequencies.shape[1], dtype=image_error.dtype, device='cpu')
    gram = frequencies.T @ frequencies + ridge
    effects = torch.linalg.solve(gram, frequencies.T @ image_error)
    residual = image_error - frequencies @ effects
    products = (residual[1:] * residual[:-1]).sum(dim=1).double()
    return bool(products.sum() > ALIKE * products.square().sum().sqrt())


def _by_image(images: Tensor, values: Tensor, num_images: int) -> Tensor:
    """Return a value for each image by its index, ``(num_images,)`` int64; 0 where unknown."""
    by_image = torch.zeros(num_images, dtype=torch.int64, device='cpu')
    by_image[images] = values
    return by_image
