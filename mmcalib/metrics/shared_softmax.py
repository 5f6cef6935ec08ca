"""One softmax for all metrics of an evaluator that want the same predictions of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from weakref import WeakSet, ref

from torch import Tensor

from mmcalib.metrics.segmentation_protocols import PROTOCOLS
from mmcalib.samples.evaluated import read_prediction
from mmcalib.samples.fields import scores_of
from mmcalib.samples.predictions import Prediction


class SharedReader:
    """Reads data samples, for several metrics once where they stand in one evaluator.

    An evaluator hands the same samples to one metric after the other, and tells none of the others.
    So a metric that is given what the reader of another has just read joins that one: from the
    second batch on, what the first of them reads is kept until the last has had it. Nothing is
    wrong if they part again: what nobody asks for is dropped with the next batch.

    It is for what is read sample by sample, as segmentations are; batches of a classifier that
    are counted at once do not pass through it.

    Args:
        ignore_index: Label of the pixels to leave out.
        protocol: Whose region to keep.
        boundary_width: Of that region.
        wanted: See :func:`~mmcalib.samples.evaluated.read_prediction`.
        floor: Likewise.
    """

    _alive: WeakSet[SharedReader] = WeakSet()

    def __init__(
        self,
        *,
        ignore_index: int,
        protocol: str,
        boundary_width: int,
        wanted: Set[str],
        floor: float,
    ) -> None:
        self._ignore_index = ignore_index
        region: Callable | None = PROTOCOLS[protocol].region
        self._region = region and partial(region, width=boundary_width)
        self._key = ignore_index, region, boundary_width if region else 0
        self._wanted = wanted
        self._floor = floor
        self._users: set[int] = set()  # that have been given the batch
        self._expected = 1  # as many as were given the batch before
        self._first: Callable[[], Tensor | None] = lambda: None  # scores of the batch
        self._kept: dict[int, tuple[Callable[[], Tensor | None], Prediction]] = {}
        self._alive.add(self)

    def joined(self, samples: Sequence[Mapping]) -> SharedReader:
        """Return the reader that has just read a batch of samples for another metric, or self."""
        first = scores_of(samples[0]) if samples else None
        if first is None or self._expected > 1:
            return self
        for other in self._alive:
            if other is not self and other._key == self._key and other._first() is first:
                other._wanted |= self._wanted
                other._floor = min(other._floor, self._floor)
                return other
        return self

    def begin(self, samples: Sequence[Mapping], user: object) -> None:
        """Be told that one of the users is given a batch."""
        first = scores_of(samples[0]) if samples else None
        if first is None or self._first() is not first or id(user) in self._users:
            self._expected = max(len(self._users), 1)
            self._users.clear()
            self._kept.clear()
            self._first = (lambda: None) if first is None else ref(first)
        self._users.add(id(user))

    def read(self, sample: Mapping, name: str) -> Prediction:
        """Return the predictions of a sample of the batch, which errors call by a name."""
        scores = scores_of(sample)
        of, prediction = self._kept.pop(id(scores), (lambda: None, None))
        if prediction is None or of() is not scores:
            prediction = read_prediction(
                sample,
                ignore_index=self._ignore_index,
                name=name,
                wanted=self._wanted,
                floor=self._floor,
                region=self._region,
            )
        if len(self._users) < self._expected:
            self._kept[id(scores)] = ref(scores), prediction
        return prediction
