"""The registered mmengine metrics: they stand beside Accuracy or IoUMetric in an evaluator."""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from mmengine.dist import all_reduce, get_dist_info
from mmengine.evaluator import BaseMetric
from mmengine.logging import print_log
from mmengine.registry import METRICS

from mmcalib.metrics.bins import ConfidenceCells, equal_mass_bins, equal_width_bins
from mmcalib.metrics.errors import binned_calibration_error, equal_mass_error_bound
from mmcalib.metrics.predictions import read_prediction

NAMES = ('ECE', 'AECE')


@METRICS.register_module()
class CalibrationMetric(BaseMetric):
    """Calibration errors of a classifier or of a segmentor, in one pass.

    The confidence is the probability of the predicted class. Each image leaves one small row, so a
    sampler's padding drops out and any split over ranks gives the same number; nothing of the size
    of an image is kept.

    - ``ECE``: expected calibration error over bins of equal width, each (lo, hi].
    - ``AECE``: adaptive calibration error, over bins of equal count. Tied confidences are shared
      between bins in proportion, which the published code does not do (it drops the smallest
      confidence, and reports 0 where all are tied); where confidences are distinct, the two differ
      by at most one sample per bin. Exact up to a million confidences; above, from fine cells,
      with ``AECE_bound`` beside it: the most by which the value can be off.

    Keys are ``calibration/ECE`` and so on, in percent; NaN, with a warning, if no prediction is
    valid. Source: Eq. 8 of the paper.

    Args:
        metrics: Any of ``'ECE'`` and ``'AECE'``.
        num_bins: Number of bins; the paper takes 15.
        ignore_index: Label of the pixels to leave out. It says nothing about a classifier's labels.
        collect_device: ``'cpu'`` or ``'gpu'``, see mmengine's ``BaseMetric``.
        prefix: Replaces ``calibration`` in the keys, so that two metrics fit in one evaluator.
        collect_dir: See mmengine's ``BaseMetric``.

    Raises:
        ValueError: If an option is outside its range; while evaluating, for the samples that
            :func:`~mmcalib.metrics.predictions.read_prediction` refuses.
    """

    default_prefix = 'calibration'

    def __init__(
        self,
        metrics: Sequence[str] = NAMES,
        *,
        num_bins: int = 15,
        ignore_index: int = 255,
        collect_device: str = 'cpu',
        prefix: str | None = None,
        collect_dir: str | None = None,
    ) -> None:
        super().__init__(collect_device=collect_device, prefix=prefix, collect_dir=collect_dir)
        metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        if not metrics or not set(metrics) <= set(NAMES):
            raise ValueError(f'metrics must be some of {NAMES}, got {metrics}')
        if not isinstance(num_bins, int) or num_bins < 1:
            raise ValueError(f'num_bins must be an integer of at least 1, got {num_bins!r}')
        self.metrics = metrics
        self.num_bins = num_bins
        self.ignore_index = ignore_index

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Add one row per data sample of a batch to ``self.results``."""
        for sample in data_samples:
            conf, correct = read_prediction(
                sample, ignore_index=self.ignore_index, name=self._name(sample)
            )
            row = {'bins': equal_width_bins(conf, correct, self.num_bins)}
            if 'AECE' in self.metrics:
                # Cells are too large for a row per image, so the first row of a rank collects them.
                # Only the last row keeps its own, since that one may be the sampler's padding.
                if len(self.results) > 1:
                    self.results[0]['cells'].merge(self.results[-1].pop('cells'))
                row['cells'] = ConfidenceCells().add(conf, correct)
            self.results.append(row)

    def evaluate(self, size: int) -> dict:
        """Return the metrics of the first `size` samples, in the order of the dataset."""
        for row in self.results:
            if 'cells' in row:
                row['cells'].compact()
        # mmengine 0.10.7 cuts every rank to the shortest, so make them equally long; the padding
        # is taken out again, and the cut to `size` made, in compute_metrics.
        longest = torch.tensor(len(self.results))
        all_reduce(longest, 'max')
        self.results.extend([None] * (int(longest) - len(self.results)))
        self._size = size
        return super().evaluate(int(longest) * get_dist_info()[1])

    def compute_metrics(self, results: list) -> dict:
        """Return the metrics of the rows of all ranks, in percent."""
        rows = [row for row in results if row is not None][: self._size]
        bins = sum((row['bins'] for row in rows), torch.zeros(3, self.num_bins).double())
        if bins[0].sum() == 0:
            print_log(
                f'{type(self).__name__}: no valid prediction in {len(rows)} samples, so '
                f'{", ".join(self.metrics)} is NaN',
                logger='current',
                level=logging.WARNING,
            )
        values = {}
        if 'ECE' in self.metrics:
            values['ECE'] = binned_calibration_error(bins)
        if 'AECE' in self.metrics:
            merged = ConfidenceCells()
            for row in rows:
                if 'cells' in row:
                    merged.merge(row['cells'])
            table = merged.table()
            values['AECE'] = binned_calibration_error(equal_mass_bins(table, self.num_bins))
            if not merged.exact:
                values['AECE_bound'] = equal_mass_error_bound(table, merged.spread(), self.num_bins)
        return values

    def _name(self, sample: dict) -> str:
        if sample.get('img_path'):
            return str(sample['img_path'])
        rank, world_size = get_dist_info()
        return f'sample {sample.get("sample_idx", len(self.results) * world_size + rank)}'


@METRICS.register_module()
class ECE(CalibrationMetric):
    """Expected calibration error alone; see :class:`CalibrationMetric`."""

    def __init__(self, *, num_bins: int = 15, ignore_index: int = 255, **common) -> None:
        super().__init__(('ECE',), num_bins=num_bins, ignore_index=ignore_index, **common)


@METRICS.register_module()
class AECE(CalibrationMetric):
    """Adaptive calibration error alone; see :class:`CalibrationMetric`."""

    def __init__(self, *, num_bins: int = 15, ignore_index: int = 255, **common) -> None:
        super().__init__(('AECE',), num_bins=num_bins, ignore_index=ignore_index, **common)
