"""The statistics that are too large for each image, by the images a protocol takes together."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mmcalib.metrics.bins.classwise_bins import ClasswiseBins
from mmcalib.metrics.bins.classwise_narrow_bins import LEAST_BITS, ClasswiseNarrowBins
from mmcalib.metrics.bins.conventions import Convention
from mmcalib.metrics.bins.narrow_bins import ConfidenceBins, RankBins
from mmcalib.metrics.metric_definitions import CLASSES, CONFIDENCE, RANKS, OfDistribution
from mmcalib.samples.predictions import Prediction

# There may be bins for each batch of images: few confidences are kept as they are, and many in bins
# of 1 % of their distance from 1.
GROUP_LIMIT = 1 << 14
GROUP_BITS = 7

Bins = ConfidenceBins | ClasswiseBins | ClasswiseNarrowBins


@dataclass
class Group:
    """Some images together: how many there are, and the bins of each distribution."""

    num_images: int = 0
    bins: dict[str | float, Bins] = field(default_factory=dict)


class ProtocolGroups:
    """Counts images in groups of consecutive ones, and keeps of a whole group its values alone.

    Args:
        size: Of a group; None for a single one of all images.
        definitions: L metrics, those that are not computed from the rows of images.
        num_bins: B.
        convention: Of the bins.
        keep_bins: Count confidences in narrow bins for diagrams too, where there is a single group.
        exact_limit: Up to how many confidences a single group, and an image, is exact.
    """

    def __init__(
        self,
        size: int | None,
        definitions: list[OfDistribution],
        num_bins: int,
        convention: Convention,
        *,
        keep_bins: bool,
        exact_limit: int | None,
    ) -> None:
        self.definitions = definitions
        self._size = size
        self._num_bins = num_bins
        self._convention = convention
        # Of batches there are many, so few values are kept as they are, in coarser bins.
        self._limits = dict(exact_limit=exact_limit)
        if size and size > 1:
            self._limits = dict(exact_limit=GROUP_LIMIT, bits=GROUP_BITS)
        kept = [CONFIDENCE] if keep_bins and size is None else []
        self._distributions = dict.fromkeys([*kept, *(d.distribution for d in definitions)])
        self._open: dict[int, Group] = {} if size else {0: Group()}
        self._closed: dict[int, Tensor] = {}  # of those that have all of their images

    @property
    def narrow_bins(self) -> ConfidenceBins:
        """Of the confidences of all images, where they are a single group."""
        return self._open[0].bins.get(CONFIDENCE, ConfidenceBins())

    def add(
        self, conf: Tensor, correct: Tensor, prediction: Prediction, *, index: int | None
    ) -> Tensor | None:
        """Count an image that has this place in the data set, which a single group need not know.

        Returns:
            ``(L, 2)`` values and bounds, where an image is a group of its own: nothing is kept.
        """
        if self._size == 1:
            group = Group()
            self._count(group, conf, correct, prediction)
            return self._values(group)
        if self._distributions:
            key = index // self._size if self._size else 0
            self._count(self._group(key), conf, correct, prediction)
            self._close(key)
        return None

    def merge(self, other: ProtocolGroups) -> None:
        """Add everything that `other` holds."""
        for key, group in other._open.items():
            own = self._group(key)
            own.num_images += group.num_images
            for name, bins in group.bins.items():
                mine = own.bins.get(name)
                own.bins[name] = copy.deepcopy(bins) if mine is None else mine.merge(bins)
            self._close(key)
        for key, values in other._closed.items():
            if key in self._closed or key in self._open:
                self._refuse(key)
            self._closed[key] = values

    def values(self, key: int = 0) -> Tensor:
        """Return the ``(L, 2)`` values of a group, and what they may be off by, NaN if exact."""
        return self._closed[key] if key in self._closed else self._values(self._open[key])

    def _count(self, group: Group, conf: Tensor, correct: Tensor, prediction: Prediction) -> None:
        group.num_images += 1
        for name in self._distributions:
            if name not in group.bins:
                group.bins[name] = self._new(name, prediction)
            bins = group.bins[name]
            if name == CONFIDENCE:
                bins.add(conf, correct)
            elif name == RANKS:
                doubt = 1 - conf.double() if prediction.doubt is None else prediction.doubt
                bins.add(-doubt, correct)
            else:
                bins.add(prediction.classes)

    def _new(self, name: str | float, prediction: Prediction) -> Bins:
        if name in (CONFIDENCE, RANKS):
            return (ConfidenceBins if name == CONFIDENCE else RankBins)(**self._limits)
        num_classes = len(prediction.classes.labels)
        if name == CLASSES:
            return ClasswiseBins(num_classes, self._num_bins, convention=self._convention)
        return ClasswiseNarrowBins(num_classes, name, bits=LEAST_BITS if self._size else None)

    def _values(self, group: Group) -> Tensor:
        found = []
        for definition in self.definitions:
            bins = group.bins.get(definition.distribution)
            value = torch.nan, torch.nan
            if bins is not None:
                value = definition.value(bins, self._num_bins, self._convention)
            found.append(value)
        return torch.tensor(found, dtype=torch.float64).view(-1, 2)

    def _group(self, key: int) -> Group:
        if key in self._closed:
            self._refuse(key)
        return self._open.setdefault(key, Group())

    def _close(self, key: int) -> None:
        """Keep no more than the values of a group that has all of its images."""
        count = self._open[key].num_images
        if self._size and count > self._size:
            self._refuse(key)
        if self._size and count == self._size:
            self._closed[key] = self._values(self._open.pop(key))

    def _refuse(self, key: int) -> None:
        first = key * self._size
        raise ValueError(
            f'more than {self._size} images have a place from {first} to {first + self._size - 1}: '
            'give update() the place of each in the data set'
        )
