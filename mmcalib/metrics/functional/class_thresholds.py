r"""Thresholds with a guarantee: a precision of each class, or a recall.

Both are about new images, of which those of the validation are independent draws. Nothing is asked
of the model, nor of the pixels in an image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmcalib.checks import check_number
from mmcalib.metrics.bins.image_bins import narrow_bin_thresholds
from mmcalib.metrics.functional.risk_threshold import RiskThreshold, threshold_at_risk

ROUNDING = 1e-9


@dataclass(frozen=True)
class ClassThreshold:
    """The threshold of a class, or the reason why it has none.

    Attributes:
        name: Of the class.
        bound: None without a threshold.
        reason: Empty with one.
        num_images: Of the validation, in which the class was predicted.
    """

    name: str
    bound: RiskThreshold | None
    reason: str
    num_images: int


def class_thresholds(
    image_class: Tensor,
    image_class_bins: Tensor,
    classes: Sequence[str],
    precision: float,
    *,
    probability: float = 0.95,
) -> list[ClassThreshold]:
    r"""Return a threshold for each class that together guarantee a precision for all classes.

    Of what is predicted as class k with a confidence above its threshold, a share of at least
    `precision` is right, on average over new images in which k is predicted, each alike. With a
    probability of at least p over validations this holds for all classes that get a threshold.

    Each class is tested by :func:`~mmcalib.metrics.functional.risk_threshold.threshold_at_risk` at
    the level :math:`(1 - p) / K`: Bonferroni's correction, which asks nothing of how the classes
    depend on each other. Classes that the validation does not have count too, since which ones it
    has is not known beforehand.

    Source: Learn then Test, see that function.

    Args:
        image_class, image_class_bins: Of
            :class:`~mmcalib.metrics.saved_statistics.CalibrationStatistics`.
        classes: K names.
        precision: A share such as 0.9.
        probability: p.

    Raises:
        ValueError: If one of the two is not in (0, 1).
    """
    if not 0 < check_number('precision', precision, most=1) < 1:
        raise ValueError(f'precision must be a share between 0 and 1, got {precision!r}')
    if not 0 < check_number('probability', probability, most=1) < 1:
        raise ValueError(f'probability must be a share between 0 and 1, got {probability!r}')
    predicted = image_class_bins[:, 0].sum(dim=1) > 0
    tables = [image_class_bins[predicted & (image_class[:, 1] == k)] for k in range(len(classes))]
    level = (1 - probability) / len(classes)
    found = []
    for name, table in zip(classes, tables, strict=True):
        bound, reason = None, 'the validation never predicts it'
        if len(table):
            nothing = torch.zeros_like(table[:, :1])
            counts = torch.cat([table[:, :2], nothing], dim=1)
            bound = threshold_at_risk(counts, 1 - precision, probability=1 - level)
            reason = '' if bound else _unproven(len(table), precision, level)
        found.append(ClassThreshold(str(name), bound, reason, len(table)))
    return found


def _unproven(count: int, precision: float, level: float) -> str:
    # Without a single error: (precision)^n is the p-value of n images.
    needed = math.ceil(math.log(level / 5) / math.log(precision))
    few = f' (about {needed} if none has an error)' if count < needed else ''
    return (
        f'its {count} validation images prove no threshold with a precision of '
        f'{100 * precision:g} %: validate on more images{few}, or accept a lower precision'
    )


@dataclass(frozen=True)
class RecallThreshold:
    """A threshold on the probability of a class that finds its pixels.

    Attributes:
        threshold: What has at least this probability of the class is marked.
        recall: The share that is guaranteed.
        found_recall: The mean over the validation's images that have the class.
        num_images: How many those are.
    """

    threshold: float
    recall: float
    found_recall: float
    num_images: int


def recall_thresholds(
    image_class: Tensor, image_class_bins: Tensor, classes: Sequence[str], recall: float
) -> list[RecallThreshold | str]:
    r"""Return the largest threshold of each class that reaches a recall, or why there is none.

    A pixel is marked as class k where :math:`p_k \geq t`, whatever other classes it is marked as.
    The loss of an image that has the class is the share of its pixels of class k that are not
    marked, which falls as t does. For n such images with the mean loss :math:`\hat R(t)`, the
    largest t with

    .. math:: \frac{n}{n + 1} \hat R(t) + \frac{1}{n + 1} \leq 1 - r

    guarantees an expected recall of at least r: :math:`\mathbb{E}[L_{n + 1}(t)] \leq 1 - r`, over
    the validation and a new image together, if all of them are exchangeable. It is a guarantee
    for each class on its own and on average, weaker than a bound that holds with a probability.

    Source: Angelopoulos, Bates, Fisch, Lei and Schuster, Conformal Risk Control, ICLR 2024,
    Theorem 1.

    Args:
        image_class, image_class_bins, classes: As of :func:`class_thresholds`.
        recall: r.

    Raises:
        ValueError: If it is not in (0, 1).
    """
    true = image_class_bins[:, 2].sum(dim=1) > 0
    return [
        recall_threshold(image_class_bins[true & (image_class[:, 1] == k), 2], recall)
        for k in range(len(classes))
    ]


def recall_over_all(
    image_class: Tensor, image_class_bins: Tensor, recall: float
) -> RecallThreshold | str:
    """Return the largest threshold that reaches a recall over the pixels of all classes together.

    As :func:`recall_thresholds`, with one threshold for all classes: a pixel has the set of classes
    whose probability is at least that, and the true one is in it for a share `recall` of the pixels
    of a new image, on average.
    """
    places, row = image_class[:, 0].unique(return_inverse=True)
    counts = image_class_bins.new_zeros(len(places), image_class_bins.shape[2], dtype=torch.int64)
    counts.index_add_(0, row, image_class_bins[:, 2].long())
    return recall_threshold(counts[counts.sum(dim=1) > 0], recall)


def recall_threshold(counts: Tensor, recall: float) -> RecallThreshold | str:
    """Return the threshold of images with ``(n, C)`` true pixels in bins of 1 - probability.

    Raises:
        ValueError: If the recall is not in (0, 1).
    """
    if not 0 < check_number('recall', recall, most=1) < 1:
        raise ValueError(f'recall must be a share between 0 and 1, got {recall!r}')
    n = len(counts)
    if not n:
        return 'the validation has no pixel of this class'
    if 1 / (n + 1) > 1 - recall + ROUNDING:
        needed = math.ceil(1 / (1 - recall) - 1 - 1e-9)
        return (
            f'its {n} validation images guarantee a recall of at most {100 * n / (n + 1):.4g} %: '
            f'{100 * recall:g} % requires {needed}'
        )
    counts = counts.double()
    # Below the c-th threshold on 1 - p are the bins before c; after the last one are all.
    kept = torch.cat([counts.new_zeros(n, 1), counts.cumsum(dim=1)], dim=1)
    missed = 1 - (kept / kept[:, -1:]).mean(dim=0)
    ends = [1 - value for value in narrow_bin_thresholds().tolist()] + [0.0]
    within = (n * missed + 1) / (n + 1) <= 1 - recall + ROUNDING
    first = int(within.nonzero()[0])
    return RecallThreshold(min(ends[first], 1.0), recall, 1 - missed[first].item(), n)
