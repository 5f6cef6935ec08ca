"""What the scalings share that see a prediction's neighbours, and so need whole maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmcalib.arrays import tensor_of
from mmcalib.checks import check_labels
from mmcalib.posthoc.logit_scaler import LogitScaler, numbers_of, warn_of_probabilities

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
        self.check_head(maps[0].logits[None])
        warn_of_probabilities(maps[0].logits.flatten(1).T)
        self._fit_maps(maps)
        self.num_logits_ = len(maps[0].logits)
        self.num_predictions_ = sum(int((one.labels != IGNORED).sum()) for one in maps)
        return self

    def _fit_maps(self, maps: Sequence[LabelledMap]) -> None:
        """Set what is learned."""
        raise NotImplementedError

    def check_head(self, logits: Tensor) -> None:
        if logits.ndim != 4:
            raise ValueError(
                f'{type(self).__name__} looks at the neighbours of a prediction and requires maps '
                f'of logits (N, K, H, W), got {tuple(logits.shape)}'
            )
        super().check_head(logits)


def valid_rows(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the ``(M, K)`` logits of the pixels of one map that are fitted, ``(K, H, W)``."""
    return logits[:, labels != IGNORED].T


def _labelled_maps(
    logits: Any, labels: Any, groups: Any, ignore_index: int | None
) -> list[LabelledMap]:
    if not len(logits) == len(labels) == len(logits if groups is None else groups):
        raise ValueError(
            f'there must be labels and, if any, a group for each of {len(logits)} maps, got '
            f'{len(labels)} and {None if groups is None else len(groups)}'
        )
    groups = None if groups is None else numbers_of(groups)
    maps = []
    for number, (z, y) in enumerate(zip(logits, labels, strict=True)):
        z, y = tensor_of('logits', z), tensor_of('labels', y)
        if z.ndim != 3 or y.shape != z.shape[1:] or (maps and len(z) != len(maps[0].logits)):
            raise ValueError(
                'logits must be maps (N, K, H, W) and labels (N, H, W), or lists of (K, H, W) and '
                f'(H, W), got {tuple(z.shape)} and {tuple(y.shape)} as those of map {number}'
            )
        if y.is_floating_point() or y.is_complex():
            raise TypeError(f'labels must be integers, got {y.dtype}')
        y = y.long().to(z.device)
        valid = torch.ones_like(y, dtype=torch.bool) if ignore_index is None else y != ignore_index
        check_labels(y[valid], max(len(z), 2), name='labels')
        group = number if groups is None else int(groups[number])
        maps.append(LabelledMap(z, y.masked_fill(~valid, IGNORED), group))
    if not any((one.labels != IGNORED).any() for one in maps):
        raise ValueError(f'there is nothing to fit: {len(maps)} maps have no valid pixel')
    wrong = sum(int((~one.logits.isfinite()).sum()) for one in maps)
    if wrong:
        raise ValueError(
            f'{wrong} of {sum(one.logits.numel() for one in maps)} logits are NaN or infinite: the '
            'model has diverged, or its input is broken'
        )
    return maps
