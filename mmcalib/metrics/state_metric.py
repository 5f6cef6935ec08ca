"""Base of the registered metrics that count images into one mergeable state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmengine.dist import get_dist_info
from mmengine.evaluator import BaseMetric

from mmcalib.distributed import warn_if_models_differ
from mmcalib.metrics.sampler_padding import SamplerPadding
from mmcalib.samples.reading import name_of


class StateMetric(BaseMetric):
    """A metric that counts every image once, and merges the states of its ranks.

    A sampler's padding drops out, so any split over ranks gives the same numbers. A metric says
    what its state is (``_new_state``, with a method ``merge``), what it takes of a data sample
    (``_read``), how that is counted (``_update``), and what it prints of a state (``_values_of``);
    one that can count a batch at once does so in ``_take``.
    """

    def reset(self) -> None:
        """Empty the state, as after an evaluation that was broken off."""
        self._state = self._new_state()
        self._padding = SamplerPadding()

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Count the predictions of a batch of data samples."""
        if not self._padding.num_samples:
            self._state = self._new_state()  # hooks may have changed an option
        try:
            self._take(data_samples)
        except BaseException:
            self.reset()
            raise

    def evaluate(self, size: int) -> dict:
        """Return the metrics of the first `size` samples of the data set.

        Raises:
            ValueError: If more were evaluated than a sampler repeats.
        """
        warn_if_models_differ()
        if not self._padding.num_samples:
            self._state = self._new_state()  # as on the ranks that have samples
        try:
            self._count(self._padding.close(size))
            # One item of each rank, so nothing is cut off; mmengine gathers them.
            self.results = [self._state]
            return super().evaluate(get_dist_info()[1])
        finally:
            self.results = []
            self.reset()

    def compute_metrics(self, results: list) -> dict:
        """Return the metrics of the states of all ranks."""
        state = results[0]
        for other in results[1:]:
            state.merge(other)
        return self._values_of(state)

    def _take(self, samples: Sequence[dict]) -> None:
        for sample in samples:
            self._count(self._padding.let_in(self._read(sample)))

    def _count(self, images: list[tuple[int, Any]]) -> None:
        for place, image in images:
            self._update(image, place)

    def _name(self, sample: dict) -> str:
        """Return the name of a sample in errors."""
        return name_of(sample, self._padding.place)

    def _new_state(self) -> Any:
        raise NotImplementedError

    def _read(self, sample: dict) -> Any:
        raise NotImplementedError

    def _update(self, image: Any, place: int) -> None:
        raise NotImplementedError

    def _values_of(self, state: Any) -> dict:
        raise NotImplementedError
