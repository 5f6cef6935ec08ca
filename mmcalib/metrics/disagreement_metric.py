"""Disagreement of the predictions whose mean is tested."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.dist import get_dist_info
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS

from mmcalib.samples.probabilities import MEASURES, disagreement_in
from mmcalib.samples.reading import name_of
from mmcalib.work_dir_files import check_writable, whole_file

TABLE = 'disagreement.csv'
MAPS = 'maps'
HEADER = ('image', *MEASURES)
UNNAMED = 'sample '  # what is not read from a file


@METRICS.register_module()
class DisagreementMetric(BaseMetric):
    """Mean mutual information (nats) and variance of the members of a mean prediction.

    Both are what a ``MeanProbabilityModel`` with ``disagreement`` leaves in its data samples, see
    :class:`~mmcalib.ensembles.mean_and_disagreement.PredictionMean`; of a segmented image, the mean
    over all its pixels. The keys are ``disagreement/mutual_information`` and
    ``disagreement/variance``.

    Args:
        out_dir: Folder for ``disagreement.csv``, a line for each image, and of segmentors
            ``maps/<name>.npz`` with both as ``(H, W)`` arrays; None to write nothing.
        collect_device: ``'cpu'`` or ``'gpu'``, see mmengine's ``BaseMetric``.
        prefix: Prefix of the keys.
        collect_dir: See mmengine's ``BaseMetric``.

    Raises:
        OSError: If nothing can be written to the folder.
        ValueError: While evaluating, for samples that say nothing of a disagreement.
    """

    default_prefix = 'disagreement'

    def __init__(
        self,
        *,
        out_dir: str | None = None,
        collect_device: str = 'cpu',
        prefix: str | None = None,
        collect_dir: str | None = None,
    ) -> None:
        super().__init__(collect_device=collect_device, prefix=prefix, collect_dir=collect_dir)
        self.out_dir = out_dir
        self._last: tuple[int, Path] | None = None
        if out_dir is not None:
            check_writable(Path(out_dir, TABLE))

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Keep name, mutual information and variance of each image."""
        rank, world_size = get_dist_info()
        for sample in data_samples:
            # mmengine's samplers interleave the ranks.
            place = len(self.results) * world_size + rank
            name = name_of(sample, place)
            arrays = disagreement_in(sample)
            missing = [key for key in MEASURES if key not in arrays]
            if missing:
                raise ValueError(
                    f'{name} has no {missing[0]}: it requires a MeanProbabilityModel with '
                    'disagreement=True'
                )
            if self.out_dir is not None and 'disagreement' in sample:
                self._last = place, Path(self.out_dir, MAPS, _map_name(place, name))
                with whole_file(self._last[1]) as path:
                    np.savez_compressed(path, **arrays)
            means = (float(arrays[key].mean(dtype=np.float64)) for key in MEASURES)
            self.results.append((name, *means))

    def evaluate(self, size: int) -> dict:
        """Return the means of the first `size` samples of the data set."""
        if self._last is not None and self._last[0] >= size:  # the image that a sampler repeats
            self._last[1].unlink()
        self._last = None
        return super().evaluate(size)

    def compute_metrics(self, results: list[tuple[str, float, float]]) -> dict:
        """Return the means over the images of all ranks."""
        if self.out_dir is not None:
            # Names of files may be no text.
            text = dict(newline='', encoding='utf-8', errors='backslashreplace')
            with whole_file(Path(self.out_dir, TABLE)) as path, path.open('w', **text) as file:
                csv.writer(file).writerows([HEADER, *results])
        columns = np.array([values for _, *values in results], dtype=np.float64).reshape(-1, 2)
        means = columns.mean(axis=0) if len(columns) else [float('nan')] * 2
        return {key: float(mean) for key, mean in zip(MEASURES, means, strict=True)}


def _map_name(place: int, name: str) -> str:
    """Return the name of an image's maps, by its place in the data set."""
    stem = '' if name.startswith(UNNAMED) else f'_{Path(name).stem}'
    return f'{place:06d}{stem}.npz'
