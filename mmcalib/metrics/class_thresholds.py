r"""Thresholds with a guarantee: a precision of each class.

It is about new images, of which those of the validation are independent draws. Nothing is asked
of the model, nor of the pixels in an image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmcalib.checks import check_share
from mmcalib.metrics.risk_threshold import RiskThreshold, threshold_at_risk


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

    Each class is tested by :func:`~mmcalib.metrics.risk_threshold.threshold_at_risk` at
    the level :math:`(1 - p) / K`: Bonferroni's correction, which asks nothing of how the classes
    depend on each other. Classes that the validation does not have count too, since which ones it
    has is not known beforehand.

    Source: Learn then Test, see that function.

    Args:
        image_class, image_class_bins: Of
            :class:`~mmcalib.metrics.statistics.CalibrationStatistics`.
        classes: K names.
        precision: A share such as 0.9.
        probability: p.

    Raises:
        ValueError: If one of the two is not in (0, 1).
    """
    check_share('precision', precision)
    check_share('probability', probability)
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
