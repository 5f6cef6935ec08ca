"""The registered mmengine metrics: they stand beside Accuracy or IoUMetric in an evaluator."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from mmengine.dist import all_reduce, get_dist_info
from mmengine.evaluator import BaseMetric
from mmengine.logging import print_log
from mmengine.registry import METRICS
from torch import Tensor

from mmcalib.metrics import calibration_errors
from mmcalib.metrics.bin_conventions import CONVENTIONS
from mmcalib.metrics.bin_tables import equal_width_bins
from mmcalib.metrics.bootstrap_intervals import intervals
from mmcalib.metrics.calibration_statistics import CalibrationStatistics, check_suffix
from mmcalib.metrics.confidence_cells import condense
from mmcalib.metrics.data_samples import Prediction, read_prediction
from mmcalib.metrics.large_tables import LargeTables, merged
from mmcalib.metrics.segmentation_protocols import PROTOCOLS
from mmcalib.several_processes import warn_if_models_differ

# Metrics of a table of bins of equal width.
BINNED: dict[str, Callable[[Tensor], Tensor]] = {
    'ECE': calibration_errors.binned_calibration_error,
    'MCE': calibration_errors.maximum_calibration_error,
    'RMSCE': calibration_errors.root_mean_square_calibration_error,
    'OE': calibration_errors.overconfidence_error,
    'accuracy': calibration_errors.accuracy,
    'confidence': calibration_errors.mean_confidence,
}
# Means over predictions, and what of a Prediction they average.
MEANS = {'NLL': 'nll', 'Brier': 'brier'}
# Of the metrics that are not in percent.
HIGHEST = {'NLL': math.inf, 'Brier': 2.0}
# Metrics whose statistics are too large for a row per image.
LARGE = ('AECE', 'ClasswiseECE')
NAMES = (*BINNED, *MEANS, *LARGE)

# Below this many predictions per bin, the noise of the bins alone makes an ECE of some percent.
ENOUGH_PER_BIN = 10


@METRICS.register_module()
class CalibrationMetric(BaseMetric):
    """Calibration of a classifier or of a segmentor, in one pass.

    The confidence is the probability of the predicted class. Each image leaves one small row, so a
    sampler's padding drops out and any split over ranks gives the same numbers; nothing of the size
    of an image is kept.

    - ``ECE``: expected calibration error over bins of equal width, each (lo, hi].
    - ``AECE``: adaptive calibration error, over bins of equal count. Tied confidences are shared
      between bins in proportion, which the published code does not do (it drops the smallest
      confidence, and reports 0 where all are tied); where confidences are distinct, the two differ
      by at most one sample per bin. Exact up to a million confidences (under the protocol
      ``'paper'``, 16,384 of each batch); above, from fine cells, with ``AECE_bound`` beside it:
      the most by which the value can be off.
    - ``ClasswiseECE``: mean over classes of the ECE of the probability of that class.
    - ``MCE``, ``RMSCE``, ``OE``: largest and root mean square gap of the bins of ECE, and the
      over-confidence error.
    - ``accuracy`` and ``confidence``: their means over all predictions.
    - ``NLL``, in nats, and ``Brier``, a sum over classes, so between 0 and 2.

    Keys are ``calibration/ECE`` and so on, in percent but for ``NLL`` and ``Brier``; NaN, with a
    warning, if no prediction is valid. Source: Eq. 8 of the paper for ECE.

    Args:
        metrics: Any of the above.
        num_bins: Number of bins; the paper takes 15.
        ignore_index: Label of the pixels to leave out. It says nothing about a classifier's labels.
        protocol: What a segmentation is judged on: ``'pooled'``, all valid pixels of all images;
            ``'foreground'``, those not of label 0; ``'image'``, the mean over images; ``'paper'``,
            the foreground in batches of 8 consecutive images, averaged by their pixels, as in the
            paper's VOC table; ``'boundary'``, those near another label.
        boundary_width: How many pixels the boundary reaches to either side.
        convention: ``'mmcalib'``, or what ``'published'``, ``'torchmetrics'`` or ``'netcal'`` code
            would print of the same predictions; see :mod:`mmcalib.metrics.bin_conventions`.
        confidence_interval: Coverage, such as 0.95, of intervals ``ECE_low`` to ``ECE_high`` and so
            on, by the basic bootstrap over images, which allows for the bias of binned errors; not
            for ``AECE`` and ``ClasswiseECE``, whose statistics are not kept by image. None for no
            intervals.
        num_bootstrap: How many times the images are drawn again.
        seed: Of these draws.
        out_file: A ``.json`` or ``.npz`` file, written at each evaluation, for the
            :class:`~mmcalib.metrics.calibration_statistics.CalibrationStatistics`.
        collect_device: ``'cpu'`` or ``'gpu'``, see mmengine's ``BaseMetric``.
        prefix: Replaces ``calibration`` in the keys, so that two metrics fit in one evaluator.
        collect_dir: See mmengine's ``BaseMetric``.

    Attributes:
        keep_statistics: Whether to fill ``statistics``; `out_file` sets it, and hooks may.
        statistics: Of the last evaluation, on the main process; else None.

    Raises:
        ValueError: If an option is outside its range; while evaluating, for the samples that
            :func:`~mmcalib.metrics.data_samples.read_prediction` refuses.
    """

    default_prefix = 'calibration'

    def __init__(
        self,
        metrics: Sequence[str] = ('ECE', 'AECE'),
        *,
        num_bins: int = 15,
        ignore_index: int = 255,
        protocol: str = 'pooled',
        boundary_width: int = 3,
        convention: str = 'mmcalib',
        confidence_interval: float | None = None,
        num_bootstrap: int = 1000,
        seed: int = 0,
        out_file: str | None = None,
        collect_device: str = 'cpu',
        prefix: str | None = None,
        collect_dir: str | None = None,
    ) -> None:
        super().__init__(collect_device=collect_device, prefix=prefix, collect_dir=collect_dir)
        metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        if not metrics or not set(metrics) <= set(NAMES):
            raise ValueError(f'metrics must be some of {NAMES}, got {metrics}')
        _check_count('num_bins', num_bins)
        _check_count('boundary_width', boundary_width)
        _check_count('num_bootstrap', num_bootstrap)
        _check_choice('protocol', protocol, PROTOCOLS)
        _check_choice('convention', convention, CONVENTIONS)
        missing = set(metrics) & set(CONVENTIONS[convention].missing)
        if missing:
            raise ValueError(f'{convention} has no {", ".join(sorted(missing))}: leave it out')
        if confidence_interval is not None and not 0 < confidence_interval < 1:
            raise ValueError(f'confidence_interval must be in (0, 1), got {confidence_interval!r}')
        if confidence_interval is not None and set(metrics) <= set(LARGE):
            raise ValueError(
                f'confidence_interval: {" and ".join(metrics)} has none, since its statistics are '
                'not kept by image: leave it out, or add another metric'
            )
        if out_file is not None:
            check_suffix(out_file)
        self.metrics = metrics
        self.num_bins = num_bins
        self.ignore_index = ignore_index
        self.protocol = protocol
        self.boundary_width = boundary_width
        self.convention = convention
        self.confidence_interval = confidence_interval
        self.num_bootstrap = num_bootstrap
        self.seed = seed
        self.out_file = out_file
        self.keep_statistics = out_file is not None
        self.statistics: CalibrationStatistics | None = None
        self._wanted = [MEANS[name] for name in metrics if name in MEANS]
        self._wanted += ['probs'] * ('ClasswiseECE' in metrics)
        region = PROTOCOLS[protocol].region
        self._region = region and partial(region, width=boundary_width)
        self._last: Prediction | None = None

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Add one row per data sample of a batch to ``self.results``."""
        for sample in data_samples:
            prediction = read_prediction(
                sample,
                ignore_index=self.ignore_index,
                name=self._name(sample),
                wanted=self._wanted,
                region=self._region,
            )
            if self.protocol != 'pooled' and 'pred_score' in sample:
                raise ValueError(
                    f'protocol {self.protocol!r} is for segmentation, and {self._name(sample)} is '
                    "a classifier's: leave it out"
                )
            self._close_last_row()
            self.results.append(self._row(prediction))
            self._last = prediction if self._keeps_large_tables else None

    def _row(self, prediction: Prediction) -> dict:
        means = [getattr(prediction, MEANS[name]) for name in MEANS]
        return {
            'bins': equal_width_bins(
                prediction.conf,
                prediction.correct,
                self.num_bins,
                convention=CONVENTIONS[self.convention],
            ),
            'sums': torch.stack(
                [
                    torch.zeros((), dtype=torch.float64)
                    if values is None
                    else values.sum(dtype=torch.float64)
                    for values in means
                ]
            ),
        }

    def _close_last_row(self) -> None:
        """Put the last prediction into the large tables of its group.

        These are too large for a row per image, so the first row of a group on this rank has them.
        The last prediction of a rank is kept apart until now, since it may be a sampler's padding.
        """
        if self._last is None:
            return
        group = PROTOCOLS[self.protocol].group
        if group == 1:
            tables = self._large_tables()
            tables.add(self._last)
            self.results[-1]['values'] = tables.values(self.metrics)
        if group != 1 or self.keep_statistics:
            first = self._first_row_of_group(group)
            if 'large' not in first:
                first['large'] = self._large_tables()
            first['large'].add(self._last)
        self._last = None

    def _first_row_of_group(self, group: int | None) -> dict:
        if group in (None, 1):  # an image's values are computed; what is left is for diagrams
            return self.results[0]
        # mmengine's samplers interleave: the dataset's sample i is on rank i % world_size.
        rank, world_size = get_dist_info()
        last = (len(self.results) - 1) * world_size + rank
        first_of_group = last // group * group
        return self.results[-(-(first_of_group - rank) // world_size)]

    @property
    def _keeps_large_tables(self) -> bool:
        return self.keep_statistics or not set(LARGE).isdisjoint(self.metrics)

    def _large_tables(self) -> LargeTables:
        group = PROTOCOLS[self.protocol].group
        return LargeTables(
            self.num_bins,
            CONVENTIONS[self.convention],
            cells='AECE' in self.metrics or self.keep_statistics,
            classwise='ClasswiseECE' in self.metrics,
            one_of_many=group is not None and group > 1,
        )

    def evaluate(self, size: int) -> dict:
        """Return the metrics of the first `size` samples, in the order of the dataset."""
        warn_if_models_differ()
        if self._last is not None:
            self.results[-1]['large'] = self._large_tables()
            self.results[-1]['large'].add(self._last)
        self._last = None
        for row in self.results:
            if 'large' in row:
                row['large'].compact()
        # mmengine 0.10.7 cuts every rank to the shortest, so make them equally long; the padding
        # is taken out again, and the cut to `size` made, in compute_metrics.
        longest = torch.tensor(len(self.results))
        all_reduce(longest, 'max')
        self.results.extend([None] * (int(longest) - len(self.results)))
        self._size = size
        return super().evaluate(int(longest) * get_dist_info()[1])

    def compute_metrics(self, results: list) -> dict:
        """Return the metrics of the rows of all ranks."""
        rows = [row for row in results if row is not None][: self._size]
        group = PROTOCOLS[self.protocol].group
        # Units are what is averaged, and drawn by the bootstrap: images, or batches of them.
        units = [rows[i : i + (group or 1)] for i in range(0, len(rows), group or 1)]
        bins, sums = self._stack(units)
        count = bins[:, 0].sum(dim=-1)
        self._log(int(count.sum()), len(rows))

        everything = torch.ones(1, len(units), dtype=torch.float64)
        values = {k: v.item() for k, v in self._estimate(bins, sums, everything).items()}
        values |= self._large_values(units, count)
        values = {name: values[name] for name in [*self.metrics, 'AECE_bound'] if name in values}
        if self.keep_statistics:
            self._keep(values, rows)
        if self.confidence_interval is not None and count.sum() > 0:
            bounds = intervals(
                partial(self._estimate, bins, sums),
                len(units),
                coverage=self.confidence_interval,
                num_bootstrap=self.num_bootstrap,
                seed=self.seed,
                highest=HIGHEST,
            )
            for name, (low, high) in bounds.items():
                values |= {f'{name}_low': low, f'{name}_high': high}
        return values

    def _stack(self, units: list[list[dict]]) -> tuple[Tensor, Tensor]:
        """Return the ``(U, 3, B)`` bins and the ``(U, 2)`` sums of units."""
        columns = CONVENTIONS[self.convention].num_columns(self.num_bins)
        bins = torch.zeros(len(units), 3, columns, dtype=torch.float64)
        sums = torch.zeros(len(units), len(MEANS), dtype=torch.float64)
        for number, unit in enumerate(units):
            for row in unit:
                bins[number] += row['bins']
                sums[number] += row['sums']
        return bins, sums

    def _estimate(self, bins: Tensor, sums: Tensor, weights: Tensor) -> dict[str, Tensor]:
        """Return the ``(R,)`` metrics for ``(R, U)`` weights of the units."""
        pooled = PROTOCOLS[self.protocol].group is None
        if pooled:
            bins = (weights @ bins.flatten(1)).view(len(weights), *bins.shape[1:])
            sums = weights @ sums
        count = bins[:, 0].sum(dim=-1)
        values = {name: error(bins) for name, error in BINNED.items() if name in self.metrics}
        means = sums / count[:, None]
        values |= {name: means[:, i] for i, name in enumerate(MEANS) if name in self.metrics}
        if pooled:
            return values
        return {name: self._mean(value, count, weights) for name, value in values.items()}

    def _mean(self, values: Tensor, count: Tensor, weights: Tensor) -> Tensor:
        """Average ``(U,)`` values for ``(R, U)`` weights of units; empty ones drop out."""
        share = count if PROTOCOLS[self.protocol].by_pixels else (count > 0).double()
        return weights @ (share * values).nan_to_num(0) / (weights @ share)

    def _large_values(self, units: list[list[dict]], count: Tensor) -> dict[str, float]:
        """Return the metrics that come from tables which are not kept for every image."""
        if not set(LARGE) & set(self.metrics):
            return {}
        if PROTOCOLS[self.protocol].group is None:
            return self._values_of([row for unit in units for row in unit])
        of_units = [unit[0].get('values') or self._values_of(unit) for unit in units]
        everything = torch.ones(1, len(units), dtype=torch.float64)
        means = {}
        for name in dict.fromkeys(name for values in of_units for name in values):
            values = torch.tensor([values.get(name, 0.0) for values in of_units]).double()
            means[name] = self._mean(values, count, everything).item()
        return means or self._values_of([])

    def _values_of(self, rows: list[dict]) -> dict[str, float]:
        tables = merged(row['large'] for row in rows if 'large' in row)
        if tables is None:
            return {name: float('nan') for name in LARGE if name in self.metrics}
        return tables.values(self.metrics)

    def _log(self, count: int, num_images: int) -> None:
        """Say what was measured, and whether it is enough."""
        name, log = type(self).__name__, partial(print_log, logger='current')
        protocol = PROTOCOLS[self.protocol].text.format(width=self.boundary_width)
        if not count:
            log(
                f'{name}: no valid prediction in {num_images} samples, so '
                f'{", ".join(self.metrics)} is NaN',
                level=logging.WARNING,
            )
            return
        log(
            f'{name}: {self.num_bins} bins by the convention {self.convention!r} over {count:,} '
            f'predictions in {num_images:,} samples; protocol {self.protocol!r}: {protocol}'
        )
        if count < ENOUGH_PER_BIN * self.num_bins:
            log(
                f'{name}: {count} predictions are few for {self.num_bins} bins, whose noise alone '
                'makes errors of some percent: take fewer bins; confidence_interval=0.95 says how '
                'uncertain they are',
                level=logging.WARNING,
            )

    def _keep(self, values: dict[str, float], rows: list[dict]) -> None:
        tables = merged(row['large'] for row in rows if 'large' in row)
        empty = torch.zeros(3, 0, dtype=torch.float64)
        self.statistics = CalibrationStatistics(
            metrics=values,
            protocol=self.protocol,
            convention=self.convention,
            num_bins=self.num_bins,
            cells=empty if tables is None else condense(tables.cells.table()),
            image_bins=torch.stack([row['bins'] for row in rows]) if rows else None,
        )
        if self.out_file is not None:
            self.statistics.save(self.out_file)

    def _name(self, sample: dict) -> str:
        if sample.get('img_path'):
            return str(sample['img_path'])
        rank, world_size = get_dist_info()
        return f'sample {sample.get("sample_idx", len(self.results) * world_size + rank)}'


def _check_count(name: str, value: int) -> None:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f'{name} must be an integer of at least 1, got {value!r}')


def _check_choice(name: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise ValueError(f'{name} must be one of {sorted(choices)}, got {value!r}')


@METRICS.register_module()
class ECE(CalibrationMetric):
    """Expected calibration error alone; see :class:`CalibrationMetric` for the other options."""

    def __init__(self, **options) -> None:
        super().__init__(('ECE',), **options)


@METRICS.register_module()
class AECE(CalibrationMetric):
    """Adaptive calibration error alone; see :class:`CalibrationMetric` for the other options."""

    def __init__(self, **options) -> None:
        super().__init__(('AECE',), **options)


@METRICS.register_module()
class ClasswiseECE(CalibrationMetric):
    """Class-wise calibration error alone; see :class:`CalibrationMetric` for the other options."""

    def __init__(self, **options) -> None:
        super().__init__(('ClasswiseECE',), **options)
