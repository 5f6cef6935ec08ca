"""Groups of images that are independent of one another, given or recognised."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmcalib.calibration.draw import Draw
from mmcalib.calibration.source import Source
from mmcalib.posthoc.fit_rows import split_rows
from mmcalib.posthoc.logits import with_other_class
from mmcalib.tensors import at_least_single

# The folds of a cross-fit.
FOLDS = 5
# Standard errors from 0, beyond which one of 160 data sets of independent images is by chance.
ALIKE = 2.5
# Nine neighbours are at most three standard errors from 0.
LEAST_ALIKE = 1.5
# Neighbours of a video that is not recognised are alike over few images: runs are no shorter.
RUN_LENGTH = 12
# A weak ridge, of a tenth of an image: few images do not determine the effect of a rare class.
RIDGE = 0.1
# The number of logits, of a few classes, that are held in memory at a time.
COLUMN_VALUES = 1 << 20


@dataclass(frozen=True)
class Groups:
    """The independent groups that images are of.

    Attributes:
        of_image: The group of each image by its index in the data, ``(n,)`` int64 from 0 on; 0 for
            images without a valid prediction, which are of no group.
        count: The number of groups.
        are_runs: Whether neighbouring images were alike, so that the groups are runs of them.
        run_of_group: The run of neighbours that each group is in, ``(G,)`` int64, of maps in order;
            None if groups are in no order.
    """

    of_image: Tensor
    count: int
    are_runs: bool = False
    run_of_group: Tensor | None = None


def independent_groups(draw: Draw, source: Source, given_groups: Tensor | None) -> Groups:
    """Return the groups of images that are independent, of those that have a valid prediction.

    They are the given groups, otherwise the images. If images next to each other, of two groups,
    are alike, as the frames of a video are, they are not independent: then the groups are 5 runs of
    neighbours, one for each fold of a cross-fit. Maps in order have runs besides, for folds that
    are right where this is not recognised.

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
    in_order = source.in_order
    if in_order and count > FOLDS and neighbours_alike(draw, of_image):
        of_image = of_image * FOLDS // count
        return Groups(of_image, FOLDS, are_runs=True)
    run_of_group = None
    if in_order and draw.pixels:
        runs_of_fold = max(len(draw.images) // (RUN_LENGTH * FOLDS), 1)
        num_runs = min(runs_of_fold * FOLDS, count)
        run_of_group = torch.arange(count, device='cpu') * num_runs // count
    elif given_groups is None:
        # A loader that shuffles numbers its images by their content, so that the folds do not
        # depend on the order.
        numbers = source.image_numbers(draw.rows)
        if numbers is not None:
            of_image = _by_image(draw.rows.images, numbers, draw.num_images)
            count = int(numbers.max()) + 1
    return Groups(of_image, count, run_of_group=run_of_group)


def neighbours_alike(draw: Draw, group_of_image: Tensor) -> bool:
    r"""Return whether images in order have errors more like their neighbours' than others'.

    The error :math:`x` of an image is the mean of its probabilities less the multiple of its class
    frequencies that explains them best, without what the frequencies explain besides (by ridge
    regression), since images may be in the order of their classes. The multiple is about 0 of a
    network that has hardly been trained, and 1 of a perfect one: so the ridge shrinks neither. For
    independent images

    .. math:: z = \sum_i x_i \cdot x_{i+1} \Big/ \sqrt{\sum_i (x_i \cdot x_{i+1})^2}

    is about normal, and at most the root of the number of neighbours: of few, half of this is
    enough. Neighbours of one group may be alike, so those of two groups alone count.

    Args:
        draw: The predictions.
        group_of_image: The group of each image by its index in the data, ``(n,)`` int64.
    """
    group_index = group_of_image[draw.rows.images.unique()]
    are_of_two = group_index[1:] != group_index[:-1]
    products = neighbour_products(draw, draw.rows.images)[are_of_two]
    limit = min(ALIKE, max(LEAST_ALIKE, len(products) ** 0.5 / 2))
    return bool(products.sum() > limit * products.square().sum().sqrt())


def neighbour_products(draw: Draw, index: Tensor) -> Tensor:
    """Return the product of the residual errors of each image and the next, ``(n - 1,)`` float64.

    Args:
        draw: The predictions.
        index: The image of each prediction, ``(M,)`` int64 in the order of the data.
    """
    index = index.unique(return_inverse=True)[1]
    num_images = int(index.max()) + 1
    if num_images == len(index) and not draw.rows.several_labels:
        return products_of_classified_images(draw, index.argsort())
    residual = residual_errors(*probabilities_and_frequencies(draw, index))
    return (residual[1:] * residual[:-1]).sum(dim=1).double()


def probabilities_and_frequencies(draw: Draw, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean probabilities of each image and frequencies of its classes, ``(n, K)`` each."""
    num_predictions = torch.bincount(index)[:, None]
    if draw.rows.several_labels:
        is_true = (draw.labels == 1).to(draw.logits.dtype)
        probs = draw.logits.sigmoid().masked_fill(draw.labels < 0, 0.0)
        class_counts = is_true.new_zeros(len(num_predictions), is_true.shape[1])
        class_counts.index_add_(0, index, is_true)
    else:
        probs = with_other_class(draw.logits).softmax(dim=1)
        num_classes = probs.shape[1]
        cells = index * num_classes + draw.labels
        class_counts = torch.bincount(cells, minlength=len(num_predictions) * num_classes)
        class_counts = class_counts.view(-1, num_classes).to(probs.dtype)
    sums = probs.new_zeros(class_counts.shape).index_add_(0, index, probs)
    return sums / num_predictions, class_counts / num_predictions


def residual_errors(probs: Tensor, frequencies: Tensor) -> Tensor:
    """Return probabilities ``(n, K)`` without what frequencies explain: a multiple, and a ridge."""
    probs = probs - probs.mean(dim=0)
    frequencies = frequencies - frequencies.mean(dim=0)
    multiple = (probs * frequencies).sum() / frequencies.square().sum()
    error = probs - multiple * frequencies
    num_images, num_classes = frequencies.shape
    if num_images < num_classes:  # The same residual, of a smaller system.
        ridge = RIDGE * torch.eye(num_images, dtype=error.dtype, device='cpu')
        return torch.linalg.solve(frequencies @ frequencies.T + ridge, RIDGE * error)
    ridge = RIDGE * torch.eye(num_classes, dtype=error.dtype, device='cpu')
    gram = frequencies.T @ frequencies + ridge
    return error - frequencies @ torch.linalg.solve(gram, frequencies.T @ error)


def products_of_classified_images(draw: Draw, order: Tensor) -> Tensor:
    r"""Return the products of the residual errors of neighbours, each of one prediction.

    With the label :math:`y_i` of each image, the number :math:`n_k` of labels of a class, the sum
    :math:`C_k` of their errors :math:`x_i`, and the weight :math:`\lambda` of the ridge, the
    regression has the residuals

    .. math:: x_i - \frac{C_{y_i} - \bar C}{n_{y_i} + \lambda}, \qquad
        \bar C = \sum_k w_k C_k \Big/ \sum_k w_k, \qquad w_k = \frac{n_k}{n_k + \lambda}

    which are computed for a few columns of the logits at a time: of 30,000 classes, the matrix of
    a regression in float32 would take 3.6 GB.

    Args:
        draw: The predictions, one of each image.
        order: The order of the images, ``(M,)`` int64.

    Returns:
        ``(M - 1,)`` float64.
    """
    logits = at_least_single(with_other_class(draw.logits))
    log_totals = torch.cat([part.logsumexp(dim=1) for (part,) in split_rows(logits)])
    labels = draw.labels
    present, label_index, counts = labels.unique(return_inverse=True, return_counts=True)
    counts = counts.to(logits.dtype)
    step = max(COLUMN_VALUES // len(labels), 1)
    columns = range(0, logits.shape[1], step)

    def probs_at(first: int) -> Tensor:
        return (logits[:, first : first + step] - log_totals[:, None]).exp_()

    mean_probs = torch.cat([probs_at(first).mean(dim=0) for first in columns])
    label_probs = (logits.gather(1, labels[:, None])[:, 0] - log_totals).exp()
    covariance = label_probs.sum() - (mean_probs[present] * counts).sum()
    multiple = covariance / (len(labels) - counts.square().sum() / len(labels))
    denominators = (counts + RIDGE)[:, None]
    weights = counts[:, None] / denominators
    weights = weights / weights.sum()
    products = torch.zeros(len(labels) - 1, dtype=torch.float64, device='cpu')
    for first in columns:
        error = probs_at(first)
        is_here = (labels >= first) & (labels < first + error.shape[1])
        error[is_here.nonzero()[:, 0], labels[is_here] - first] -= multiple
        error -= error.mean(dim=0)
        class_sums = error.new_zeros(len(present), error.shape[1])
        class_sums.index_add_(0, label_index, error)
        explained = (class_sums - (weights * class_sums).sum(dim=0)) / denominators
        residual = (error - explained[label_index])[order]
        products += (residual[1:] * residual[:-1]).sum(dim=1).double()
    return products


def _by_image(images: Tensor, values: Tensor, num_images: int) -> Tensor:
    """Return a value for each image by its index, ``(num_images,)`` int64; 0 where unknown."""
    by_image = torch.zeros(num_images, dtype=torch.int64, device='cpu')
    by_image[images] = values
    return by_image
