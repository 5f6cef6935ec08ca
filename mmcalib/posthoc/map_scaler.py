"""What the scalings share that see a prediction's neighbours, and so need whole maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmcalib.posthoc.logit_scaler import LogitScaler, check_arrays, warn_of_probabilities

# Whatever the caller's is, no class has this label.
IGNORED = -1


@dataclass
class LabelledMap:
    """The logits of an image, or of a crop of one.

    Attributes:
        logits: ``(K, H, W)``.
        labels: ``(H, W)`` int64; -1 for what is seen but not fitted.
        group: Maps of the same number are not independent.
    """

    logits: Tensor
    labels: Tensor
    group: int


class MapScaler(LogitScaler):
    """A scaling of which a prediction depends on its neighbours."""

    needs_maps = True

    def fit(
        self, logits: Any, labels: Any, groups: Any = None, *, ignore_index: int | None = None
    ) -> MapScaler:
        """Learn the scaling from held-out maps of logits, and return self.

        Args:
            logits: Maps ``(N, K, H, W)``, or a list of N maps ``(K, H, W)`` of any sizes, such as
                those of :func:`~mmcalib.posthoc.sampled_maps.draw_maps`; raw logits, not
                probabilities. K = 1 for a binary segmentor that ends in a sigmoid.
            labels: ``(N, H, W)``, or a list of ``(H, W)``; true classes.
            groups: ``(N,)`` integers: maps of the same number, such as crops of an image, are not
                independent. None if every map is a group of its own.
            ignore_index: Label of what is seen as context, but not fitted, such as mmsegmentation's
                255. None leaves nothing out.

        Warns:
            UserWarning: If the logits look like probabilities.

        Raises:
            TypeError: If labels are no integers.
            ValueError: If there is no prediction, logits are NaN or infinite, also of ignored
                pixels, labels are out of range, the shapes do not fit, or the data leave the
                scaling undetermined.
        """
        maps = _labelled_maps(logits, labels, groups, ignore_index)
        for one in maps:
            warn_of_probabilities(one.logits.flatten(1).T)
        self._fit_maps(maps)
        self.num_predictions_ = sum(int((one.labels != IGNORED).sum()) for one in maps)
        return self

    def _fit_maps(self, maps: Sequence[LabelledMap]) -> None:
        """Set what is learned."""
        raise NotImplementedError

    def _check_head(self, logits: Tensor) -> None:
        if logits.ndim != 4:
            raise ValueError(
                f'{type(self).__name__} looks at the neighbours of a prediction and takes maps of '
                f'logits (N, K, H, W), got {tuple(logits.shape)}'
            )
        super()._check_head(logits)


def _labelled_maps(
    logits: Any, labels: Any, groups: Any, ignore_index: int | None
) -> list[LabelledMap]:
    if len(logits) != len(labels) or (groups is not None and len(groups) != len(logits)):
        raise ValueError(
            f'there must be labels and, if any, a group for each of {len(logits)} maps, got '
            f'{len(labels)} and {None if groups is None else len(groups)}'
        )
    maps = []
    for number, (z, y) in enumerate(zip(logits, labels, strict=True)):
        z, y = torch.as_tensor(z).detach(), torch.as_tensor(y)
        if z.ndim != 3 or y.shape != z.shape[1:]:
            raise ValueError(
                'logits must be maps (N, K, H, W) and labels (N, H, W), or lists of maps (K, H, W) '
                f'and (H, W), got {tuple(z.shape)} and {tuple(y.shape)} as those of map {number}'
            )
        maps.append(LabelledMap(z, y, number if groups is None else int(groups[number])))
    if not maps:
        raise ValueError('there is nothing to fit: no map is given')
