"""The statistics that are too large for each image, by the images a protocol takes together."""

from __future__ import annotations

from torch import Tensor

from mmcalib.metrics.bins.conventions import Convention
from mmcalib.metrics.bins.narrow_bins import ConfidenceBins, RankBins
from mmcalib.metrics.image_group_statistics import GroupStatistics
from mmcalib.metrics.metric_definitions import OfClasses, OfClassNarrowBins, OfNarrowBins
from mmcalib.samples.predictions import Prediction

# There may be bins for each batch of images: few confidences are kept as they are, and many in bins
# of 1 % of their distance from 1.
GROUP_LIMIT = 1 << 14
GROUP_BITS = 7


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
        definitions: list[OfNarrowBins | OfClasses | OfClassNarrowBins],
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
        self._exact_limit = exact_limit
        self._with_ranks = any(isinstance(d, OfNarrowBins) and d.ranks for d in definitions)
        self._with_bins = any(isinstance(d, OfNarrowBins) and not d.ranks for d in definitions)
        self._with_bins |= keep_bins and size is None
        self._open: dict[int, GroupStatistics] = {} if size else {0: self._new()}
        self._closed: dict[int, Tensor] = {}  # of those that have all of their images

    @property
    def narrow_bins(self) -> ConfidenceBins | None:
        """Of all images, where they are a single group."""
        return None if self._size else self._open[0].narrow_bins

    def add(
        self, conf: Tensor, correct: Tensor, prediction: Prediction, *, index: int | None
    ) -> Tensor | None:
        """Count an image that has this place in the data set, which a single group need not know.

        Returns:
            ``(L, 2)`` values and bounds, where an image is a group of its own: nothing is kept.
        """
        if self._size is None:
            self._open[0].add(conf, correct, prediction)
        elif self.definitions and self._size == 1:
            return self._new().add(conf, correct, prediction).values(self.definitions)
        elif self.definitions:
            key = index // self._size
            self._group(key).add(conf, correct, prediction)
            self._close(key)
        return None

    def merge(self, other: ProtocolGroups) -> None:
        """Add everything that `other` holds."""
        for key, group in other._open.items():
            self._group(key).merge(group)
            self._close(key)
        for key, values in other._closed.items():
            if key in self._closed or key in self._open:
                self._refuse(key)
            self._closed[key] = values

    def values(self, key: int = 0) -> Tensor:
        """Return the ``(L, 2)`` values of a group, and what they may be off by, NaN if exact."""
        if key in self._closed:
            return self._closed[key]
        return self._open[key].values(self.definitions)

    def _group(self, key: int) -> GroupStatistics:
        if key in self._closed:
            self._refuse(key)
        if key not in self._open:
            self._open[key] = self._new()
        return self._open[key]

    def _close(self, key: int) -> None:
        """Keep no more than the values of a group that has all of its images."""
        count = self._open[key].num_images
        if self._size and count > self._size:
            self._refuse(key)
        if self._size and count == self._size:
            self._closed[key] = self._open.pop(key).values(self.definitions)

    def _refuse(self, key: int) -> None:
        first = key * self._size
        raise ValueError(
            f'more than {self._size} images have a place from {first} to {first + self._size - 1}: '
            'give update() the place of each in the data set'
        )

    def _new(self) -> GroupStatistics:
        # Of batches there are many, so few values are kept as they are, in coarser narrow bins.
        limits = dict(exact_limit=self._exact_limit)
        if self._size and self._size > 1:
            limits = dict(exact_limit=GROUP_LIMIT, bits=GROUP_BITS)
        return GroupStatistics(
            self._num_bins,
            self._convention,
            narrow_bins=ConfidenceBins(**limits) if self._with_bins else None,
            ranks=RankBins(**limits) if self._with_ranks else None,
            classwise=any(isinstance(d, OfClasses) for d in self.definitions),
            floors=sorted({d.floor for d in self.definitions if isinstance(d, OfClassNarrowBins)}),
            few_bins=self._size is not None,
        )
