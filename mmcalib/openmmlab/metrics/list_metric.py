"""Base of the registered metrics: one result of each sample, in mmengine's own list."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmengine.dist import all_gather, get_dist_info
from mmengine.evaluator import BaseMetric
from mmengine.logging import print_log

from mmcalib.errors import UserError
from mmcalib.metrics.counts import FineBinLimit
from mmcalib.metrics.kept_memory import KeptMemory
from mmcalib.openmmlab.samples import IGNORE_INDEX, background_index, read_sample, sample_name
from mmcalib.options import check_ignore_index
from mmcalib.predictions.image_predictions import ImagePredictions


class ListMetric(BaseMetric):
    """Base of the metrics that keep one result per sample, so that mmengine drops repeated ones.

    Args:
        ignore_index: Label of the pixels to leave out; None for the one that the head of the model
            ignores, which our tools set, and 255 in others. Classifiers do not use it.
        **base: Options of mmengine's ``BaseMetric``.

    Attributes:
        num_samples: Number of samples of the last figures, on the main process. An evaluator that
            measures the parts of a ``ConcatDataset`` has figures of each part.
    """

    num_samples = 0

    def __init__(self, *, ignore_index: int | None = None, **base: Any) -> None:
        super().__init__(**base)
        self.declares_ignore_index = ignore_index is not None
        if ignore_index is None:
            ignore_index = IGNORE_INDEX
        self.use_ignore_index(check_ignore_index(ignore_index))

    def use_ignore_index(self, ignore_index: int) -> None:
        """Leave out the pixels of a label."""
        self.ignore_index = ignore_index

    def process(self, data_batch: object, data_samples: Sequence[dict]) -> None:
        """Keep what ``read(sample)`` of a subclass returns for each sample."""
        for sample in data_samples:
            self.results.append(self.read(sample))

    @property
    def dataset_meta(self) -> dict | None:
        """The metainfo of the data set, such as its classes."""
        return self._dataset_meta

    @dataset_meta.setter
    def dataset_meta(self, meta: dict | None) -> None:
        self.check_meta(meta or {})
        self._dataset_meta = meta

    def check_meta(self, meta: Mapping) -> None:
        """Raise an error for a data set that the metric is not for.

        Args:
            meta: Metainfo of the data set, or a sample, which holds the same.
        """

    def prepare_result(self, result: Any) -> Any:
        """Return a result as it is kept: all are rounded once there are a million predictions."""
        if not self.results:  # mmengine empties the list after each evaluation.
            self.limit = FineBinLimit()
            self.memory = KeptMemory()
        result = self.limit.take(result)
        return self.memory.keep(result) if self.limit.is_reached else result

    @property
    def has_many(self) -> bool:
        """Whether the next result is rounded, since a million predictions are counted already."""
        return bool(self.results) and self.limit.is_reached

    def evaluate(self, size: int) -> dict:
        """Return the metrics of the first `size` samples of the data set.

        Raises:
            ValueError: If fewer were evaluated, or more than a sampler repeats.
        """
        counts = all_gather(torch.tensor(len(self.results), device='cpu'))
        num_evaluated = sum(int(count) for count in counts)
        if not size <= num_evaluated < size + len(counts):
            self.results = []
            raise UserError(
                f'{num_evaluated:,} samples were evaluated on {len(counts)} processes, and the '
                f'data set has {size:,}. A sampler repeats fewer than one sample per process; an '
                'interrupted evaluation leaves more: evaluate again'
            )
        return super().evaluate(size)

    def log(self, message: str, level: int = logging.INFO) -> None:
        """Log a line that begins with the name of the metric."""
        print_log(f'{type(self).__name__}: {message}', logger='current', level=level)

    @property
    def dataset_background(self) -> int | None:
        """The index of the class that the data set calls background; None if there is none."""
        return background_index((self.dataset_meta or {}).get('classes'))

    def next_name(self, sample: dict) -> str:
        """Return the name of the next sample in errors."""
        # Samplers interleave the processes.
        rank, world_size = get_dist_info()
        return sample_name(sample, len(self.results) * world_size + rank)

    def read_predictions(self, sample: dict, **options: Any) -> ImagePredictions:
        """Return the predictions of the next sample.

        Args:
            sample: The evaluated sample.
            options: Options of :func:`~mmcalib.openmmlab.samples.read_sample`.
        """
        name = self.next_name(sample)
        return read_sample(sample, name, ignore_index=self.ignore_index, **options)
