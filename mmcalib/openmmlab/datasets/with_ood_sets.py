"""A data set, and others whose classes a model has never seen, as one."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

import torch
from mmengine.registry import DATASETS
from torch.utils.data import ConcatDataset

OOD_GROUPS = ('near', 'far')  # of sets, in the metainfo of a data set that has any

HAVE_PIPELINE = ('pipeline', 'dataset', 'datasets')  # wrappers' parts have their own
RESERVED = (*OOD_GROUPS, 'ID', 'OOD')
NAME = r'[\w.-]+'  # it stands between slashes in the keys of metrics


@DATASETS.register_module()
class WithOODSets(ConcatDataset):
    """A classifier's test data followed by out-of-distribution data sets.

    Samples of the i-th OOD set have the label -i, whatever their own. The names of the sets are in
    ``metainfo['ood_sets']``, from where :class:`~mmcalib.openmmlab.metrics.OODMetric` has them.

    Args:
        dataset: The test data, or their config.
        near: OOD sets similar to the test data, such as other classes of the same photographs: data
            sets or configs by name. A config without a pipeline gets that of `dataset`.
        far: OOD sets that are not similar, likewise.

    Raises:
        ValueError: Without OOD sets, or if two have one name, or one that keys of metrics cannot
            have.
    """

    def __init__(
        self, dataset: Any, near: Mapping[str, Any] | None = None, far: Mapping | None = None
    ) -> None:
        near, far = near or {}, far or {}
        names = [name for name in {*near, *far} - {*RESERVED} if re.fullmatch(NAME, name)]
        if not names or len(names) < len(near) + len(far):
            names = f'letters, digits, dots and dashes, but none of {RESERVED}'
            found = f'got {list(near)} and {list(far)}'
            raise ValueError(f'near and far must be dicts of OOD sets named by {names}, {found}')
        pipeline = dataset.get('pipeline') if isinstance(dataset, Mapping) else None
        super().__init__([_built(x, pipeline) for x in (dataset, *near.values(), *far.values())])
        sets = dict(near=list(near), far=list(far))
        self.metainfo = {**self.datasets[0].metainfo, 'ood_sets': sets}

    def __getitem__(self, index: int) -> dict:
        number, place = self._find(index)
        sample = self.datasets[number][place]
        if number:
            sample['data_samples'].gt_label = torch.tensor([-number], device='cpu')
        return sample

    def get_data_info(self, index: int) -> dict:
        """Return the facts about a sample before it is loaded."""
        number, place = self._find(index)
        info = self.datasets[number].get_data_info(place)
        return {**info, 'gt_label': -number} if number else info

    def _find(self, index: int) -> tuple[int, int]:
        number = bisect_right(self.cumulative_sizes, range(len(self))[index])
        return number, index - [0, *self.cumulative_sizes][number]


def _built(dataset: Any, pipeline: list | None) -> Any:
    if not isinstance(dataset, Mapping):
        return dataset
    given = {} if pipeline is None or {*HAVE_PIPELINE} & {*dataset} else {'pipeline': pipeline}
    return DATASETS.build({**dataset, **given})
