"""A data set, and others whose classes a model has never seen, as one."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import torch
from mmengine.registry import DATASETS

from mmcalib.metric_keys import OOD_GROUPS

WRAPPERS = ('dataset', 'datasets')
RESERVED = (*OOD_GROUPS, 'ID', 'OOD')
NAME = r'[\w.-]+'  # it stands between slashes in the keys of metrics


@DATASETS.register_module()
class WithOODSets:
    """A classifier's test data followed by out-of-distribution data sets.

    Samples of the i-th OOD set have the label -i, whatever their own. The names of the sets are in
    ``metainfo['ood_sets']``, from where :class:`~mmcalib.metrics.OODMetric` has them.

    Args:
        dataset: The test data, or their config.
        near: OOD sets similar to the test data, such as other classes of the same photographs: data
            sets or configs by name. A config without a pipeline gets that of `dataset`.
        far: OOD sets that are not similar, likewise.

    Raises:
        ValueError: Without OOD sets, or if two have one name, or one that keys of metrics cannot
            have; for a set of arrays that would get a pipeline for files, or the reverse.
    """

    def __init__(
        self, dataset: Any, near: Mapping[str, Any] | None = None, far: Mapping | None = None
    ) -> None:
        near, far = near or {}, far or {}
        names = [*near, *far]
        wrong = [n for n in names if n in RESERVED or not re.fullmatch(NAME, n)]
        if wrong or {*near} & {*far} or not (near or far):
            raise ValueError(
                'near and far must be dicts of OOD sets with distinct names of letters, digits, '
                f'dots and dashes, none of them {", ".join(RESERVED)}, got {list(near)} and '
                f'{list(far)}'
            )
        pipeline = dataset.get('pipeline') if isinstance(dataset, Mapping) else None
        parts = (dataset, *near.values(), *far.values())
        self.datasets = [_built(part, pipeline) for part in parts]
        for name, part, built in zip(names, parts[1:], self.datasets[1:], strict=True):
            if pipeline is not None and _lacks_pipeline(part):
                _check_kind(name, built, self.datasets[0])
        self.metainfo = dict(self.datasets[0].metainfo) | {
            'ood_sets': dict(near=list(near), far=list(far))
        }
        self._ends = list(accumulate(map(len, self.datasets)))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> dict:
        number, place = self._find(index)
        sample = self.datasets[number][place]
        if number:
            sample['data_samples'].gt_label = torch.tensor([-number])
        return sample

    def get_data_info(self, index: int) -> dict:
        """Return the facts about a sample before it is loaded."""
        number, place = self._find(index)
        info = self.datasets[number].get_data_info(place)
        return {**info, 'gt_label': -number} if number else info

    def _find(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f'index {index} of {len(self)} samples')
        number = bisect_right(self._ends, index)
        return number, index - (self._ends[number - 1] if number else 0)


def _lacks_pipeline(dataset: Any) -> bool:
    return isinstance(dataset, Mapping) and not any(k in dataset for k in ('pipeline', *WRAPPERS))


def _check_kind(name: str, dataset: Any, clean: Any) -> None:
    """Raise a ValueError if a set cannot go through the pipeline of the test data."""
    if not all(hasattr(each, 'get_data_info') and len(each) for each in (dataset, clean)):
        return
    arrays = ['img' in each.get_data_info(0) for each in (dataset, clean)]
    if arrays[0] != arrays[1]:
        kinds = ['arrays' if each else 'files' for each in arrays]
        raise ValueError(
            f'the OOD set {name} has {kinds[0]}, but the test data, whose pipeline it would get, '
            f'have {kinds[1]}: give it its own pipeline'
        )


def _built(dataset: Any, pipeline: list | None) -> Any:
    if isinstance(dataset, Mapping):
        if pipeline is not None and _lacks_pipeline(dataset):
            dataset = {**dataset, 'pipeline': pipeline}
        dataset = DATASETS.build(dict(dataset))
    if hasattr(dataset, 'full_init'):
        dataset.full_init()
    return dataset
