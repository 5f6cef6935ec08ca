"""Held-out predictions that a scaling is fitted to, drawn and in independent groups."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from mmcalib.calibration.draw import Draw, draw_predictions, sort_rows
from mmcalib.calibration.independent_groups import FOLDS, Groups, independent_groups
from mmcalib.calibration.source import Source
from mmcalib.errors import UserError
from mmcalib.posthoc.temperature_search import information
from mmcalib.predictions.group_names import group_numbers
from mmcalib.predictions.image_predictions import ImagePredictions


@dataclass(frozen=True)
class HeldOut:
    """Predictions that a scaling is fitted to.

    Attributes:
        draw: The predictions, in the order of their groups.
        groups: The independent groups of their images.
        seed: The seed of the draw and of the folds.
    """

    draw: Draw
    groups: Groups
    seed: int = 0

    @cached_property
    def folds(self) -> Tensor:
        """The fold of each group, ``(G,)`` int64 in [0, 5), or less if there are fewer groups.

        They are of nearly equal sizes. Those of groups in runs of neighbours are whole runs, so
        that neighbours are in two folds at the ends of runs alone; others are drawn.

        Raises:
            UserError: If there is one group.
        """
        if self.groups.count < 2:
            raise UserError(
                'all valid predictions are of one image, or of one of the given groups, so no '
                'scaling can be fitted on others: calibrate on more data'
            )
        if self.groups.run_of_group is not None:
            return self.groups.run_of_group % FOLDS
        fold = np.random.RandomState(self.seed).permutation(self.groups.count) % FOLDS
        return torch.from_numpy(fold.astype(np.int64))

    @cached_property
    def rows(self) -> ImagePredictions:
        """The predictions, whose images are the groups."""
        rows = self.draw.rows
        return rows.with_images(self.groups.of_image[rows.images])

    @cached_property
    def pooled(self) -> ImagePredictions:
        """The valid predictions of :attr:`rows`; those of several labels are taken together."""
        return self.rows.pool_labels()

    @cached_property
    def information(self) -> float | None:
        """How clearly logits tell about the labels; None of several labels.

        See :func:`~mmcalib.posthoc.temperature_search.information`.
        """
        return None if self.draw.rows.several_labels else information(self.pooled)


def draw_held_out(
    batches: Iterable[ImagePredictions],
    source: Source,
    *,
    groups: Sequence[Hashable] | Tensor | None = None,
    num_samples: int | None = None,
    seed: int = 0,
) -> HeldOut:
    """Draw predictions for a fit, and find their independent groups.

    All processes have to call it, and all get the same result.

    Args:
        batches: The predictions that this process has read.
        source: The source that they come from.
        groups: The group of each image in the order of the data; None if every image is one.
        num_samples: The number of predictions to draw at most; None for 200,000 pixels, or all
            classified images.
        seed: The seed of the draw and of the folds.

    Raises:
        UserError: If there is no valid prediction.
    """
    draw = draw_predictions(batches, source, num_samples=num_samples, seed=seed)
    given_groups = None if groups is None else group_numbers(groups, draw.num_images)
    independent = independent_groups(draw, source, given_groups)
    # The last digits of a sum depend on the order of its terms, which a loader may shuffle.
    rows = sort_rows(draw.rows, independent.of_image[draw.rows.images])
    return HeldOut(replace(draw, rows=rows), independent, seed)
