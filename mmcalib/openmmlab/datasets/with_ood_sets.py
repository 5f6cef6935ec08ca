"""A data set followed by others of unknown classes."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

import torch
from mmengine.registry import DATASETS
from torch.utils.data import ConcatDataset

from mmcalib.choices import OOD_GROUPS

# A config with one of these keys has a pipeline, its own or those of its parts.
HAVE_PIPELINE = ('pipeline', 'dataset', 'datasets')
RESERVED = (*OOD_GROUPS, 'ID', 'OOD')
NAME = r'[\w.-]+'  # It stands between slashes in the keys of metrics.


@DATASETS.register_module()
class WithOODSets(ConcatDataset):
    """A classifier's test data followed by out-of-distribution data sets.

    Samples of the i-th OOD set have the label -i, whatever their own. The names of the sets are in
    ``metainfo['ood_sets']``, where :class:`~mmcalib.openmmlab.metrics.OODMetric` reads them.

    Args:
        dataset: Test data, or their config.
        near: OOD sets similar to the test data, such as other classes of the same photographs: data
            sets or configs by name. A config without a pipeline gets that of `dataset`.
        far: OOD sets that are not similar, in the same form.

    Raises:
        ValueError: Without OOD sets, or if two have one name, or one that keys of metrics cannot
            have.
    """

    def __init__(
        self, dataset: Any, near: Mapping[str, Any] | None = None, far: Mapping | None = None
    ) -> None:
        near = near or {}
        far = far or {}
        valid_names = set()
        for name in (*near, *far):
            if name not in RESERVED and re.fullmatch(NAME, name):
                valid_names.add(name)
        if not valid_names or len(valid_names) < len(near) + len(far):
            raise ValueError(
                'near and far must be dicts of OOD sets named by letters, digits, dots and '
                f'dashes, but none of {RESERVED}, got {list(near)} and {list(far)}'
            )
        pipeline = dataset.get('pipeline') if isinstance(dataset, Mapping) else None
        parts = [dataset, *near.values(), *far.values()]
        super().__init__([_build_dataset(part, pipeline) for part in parts])
        ood_sets = dict(near=list(near), far=list(far))
        self.metainfo = {**self.datasets[0].metainfo, 'ood_sets': ood_sets}

    def __getitem__(self, index: int) -> dict:
        part, part_index = self._find(index)
        sample = self.datasets[part][part_index]
        if part > 0:
            sample['data_samples'].gt_label = torch.tensor([-part], device='cpu')
        return sample

    def get_data_info(self, index: int) -> dict:
        """Return the facts about a sample before it is loaded."""
        part, part_index = self._find(index)
        info = self.datasets[part].get_data_info(part_index)
        return {**info, 'gt_label': -part} if part > 0 else info

    def _find(self, index: int) -> tuple[int, int]:
        """Return the number of the data set that a sample is of, and its index there."""
        part = bisect_right(self.cumulative_sizes, range(len(self))[index])
        starts = [0, *self.cumulative_sizes]
        return part, index - starts[part]


def _build_dataset(dataset: Any, pipeline: list | None) -> Any:
    """Return a data set from its config, which may lack a pipeline, or as it is."""
    if not isinstance(dataset, Mapping):
        return dataset
    has_pipeline = any(key in dataset for key in HAVE_PIPELINE)
    if pipeline is None or has_pipeline:
        return DATASETS.build({**dataset})
    return DATASETS.build({**dataset, 'pipeline': pipeline})
