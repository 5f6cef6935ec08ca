"""A few samples of a dataset, for a run that only shows that everything works."""

from __future__ import annotations

from typing import Any

import numpy as np
from mmengine.registry import DATASETS
from torch.utils.data import Subset


@DATASETS.register_module()
class EvenSubset(Subset):
    """Evenly spaced samples of a dataset, so that several classes occur even if it is sorted.

    Args:
        dataset: Any dataset, or its config; it may be a wrapper such as ``ConcatDataset``.
        samples: Largest number of samples.
    """

    def __init__(self, dataset: Any, samples: int) -> None:
        if isinstance(dataset, dict):
            dataset = DATASETS.build(dataset)
        count = min(samples, len(dataset))
        middles = (np.arange(count) + 0.5) * len(dataset) / max(count, 1)
        super().__init__(dataset, middles.astype(int).tolist())

    def __getattr__(self, name: str) -> Any:
        if name in ('dataset', 'indices') or name.startswith('__'):  # It is being unpickled.
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def get_data_info(self, index: int) -> dict:
        """Return the dataset's facts about a sample before it is loaded."""
        return self.dataset.get_data_info(self.indices[index])
