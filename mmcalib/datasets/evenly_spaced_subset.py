"""A few samples of a dataset, for a run that only shows that all works."""

from __future__ import annotations

from typing import Any

import numpy as np
from mmengine.registry import DATASETS

from mmcalib.checks import check_integer


@DATASETS.register_module()
class EvenSubset:
    """Evenly spaced samples of a dataset, so that several classes occur even if it is sorted.

    Args:
        dataset: Any dataset, or its config; it may be a wrapper such as ``ConcatDataset``.
        samples: Largest number of samples.

    Raises:
        TypeError: If the number is no integer.
        ValueError: If it is below 1.
    """

    def __init__(self, dataset: Any, samples: int) -> None:
        check_integer('samples', samples)
        self.dataset = DATASETS.build(dataset) if isinstance(dataset, dict) else dataset
        if hasattr(self.dataset, 'full_init'):
            self.dataset.full_init()
        size = len(self.dataset)
        # The middles of as many parts.
        count = min(samples, size)
        self.indices = ((np.arange(count) + 0.5) * size / max(count, 1)).astype(int).tolist()

    def __getattr__(self, name: str) -> Any:
        if name in ('dataset', 'indices') or name.startswith('__'):  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def get_data_info(self, index: int) -> dict:
        """Return the dataset's facts about a sample before it is loaded."""
        return self.dataset.get_data_info(self.indices[index])
