"""Measurement: the counts of predictions that come in any parts, and the metrics that they give.

Outcomes tell how right each prediction is, counts are their sums, and a measurement makes metrics
of counts. Everything that measures has one: ``measure``, ``evaluate``, a stream, a comparison, the
registered metrics, and what is said before and after a calibration.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmcalib.metrics.class_rates import ClassRates
from mmcalib.metrics.counts import (
    BINS_PER_MERGE,
    Counts,
    FineBinLimit,
    class_table,
    count_outcomes,
    sum_counts,
)
from mmcalib.metrics.definitions import find_metric, metric_names
from mmcalib.metrics.kept_memory import MEMORY, own_storage
from mmcalib.metrics.measured import Measured
from mmcalib.metrics.outcomes import Outcomes, compute_outcomes
from mmcalib.metrics.protocols import PROTOCOLS
from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.metrics.unit_tables import UnitTables, concatenate_tables, tables_of_rows
from mmcalib.options import check_choice, check_integer
from mmcalib.predictions.group_names import group_numbers
from mmcalib.predictions.image_predictions import ImagePredictions

DEFAULT_METRICS = ('ECE', 'AECE', 'NLL', 'Brier', 'accuracy')
# Two classes are judged by the probability of class 1, beside that of the predicted class.
TWO_CLASS_METRICS = ('ClasswiseECE', *DEFAULT_METRICS)
# Images whose counts are merged at a time; fewer if they have many fine bins.
IMAGES_PER_MERGE = 64


class Measurement:
    """Metrics of predictions that are added in any parts; several labels are counted together.

    Only few images are in memory once fine bins are rounded, but for the tables of each image.

    Args:
        metrics: Name of a metric, or several. ``DEFAULT_METRICS`` become ``TWO_CLASS_METRICS`` of
            two classes.
        num_bins: Number of bins B.
        protocol: Name of the protocol of segmentation.
        boundary_width: Width of the protocol ``'boundary'``, in pixels.
        keeps_images: Whether to keep the tables of each image, for intervals.
        is_single_value: Whether the value of one metric alone is asked for. If that is one of
            equally wide bins, there are no fine bins, and nothing can be drawn.
        limit: The limit of exact fine bins that is shared with other measurements; None for one of
            its own.

    Attributes:
        names: Names of the metrics.
        num_bins, protocol_name, boundary_width, keeps_images, limit: As the arguments.
        protocol: The protocol.
    """

    def __init__(
        self,
        metrics: str | Sequence[str] = DEFAULT_METRICS,
        *,
        num_bins: int = 15,
        protocol: str = 'pooled',
        boundary_width: int = 3,
        keeps_images: bool = False,
        is_single_value: bool = False,
        limit: FineBinLimit | None = None,
    ) -> None:
        self._take_names(metric_names(metrics))
        self.num_bins = check_integer('num_bins', num_bins)
        self.protocol_name = check_choice('protocol', protocol, PROTOCOLS)
        self.protocol = PROTOCOLS[protocol]
        self.boundary_width = check_integer('boundary_width', boundary_width)
        self.keeps_images = keeps_images
        self.limit = limit or FineBinLimit()
        self._with_fine_bins = not is_single_value or find_metric(metrics).bin_formula is None
        self._has_default_metrics = metrics == DEFAULT_METRICS
        self._are_maps = False
        # The counts of the images of each unit of the protocol: one unit, or every few images.
        self._units: list[list[Counts]] = [[]]
        self._images_in_last_unit = 0
        self._tables: list[tuple[Tensor, UnitTables]] = []

    @property
    def count(self) -> float:
        """The number of valid predictions."""
        return sum(part.count for parts in self._units for part in parts)

    def _take_names(self, names: list[str]) -> None:
        """Take the names of the metrics, and what they require of the outcomes."""
        self.names = names
        self.required = {find_metric(name).required for name in names} - {None}

    def add(self, predictions: ImagePredictions) -> None:
        """Count labelled predictions of known images: rows at once, maps one by one."""
        if self._has_default_metrics and predictions.are_of_two_classes:
            self._take_names([*TWO_CLASS_METRICS])
        for part in predictions.split_maps():
            if self.protocol.region is not None:
                region = self.protocol.region(part.labels[0], self.boundary_width)
                part = part.within(region[None])
            outcomes = compute_outcomes(part, num_bins=self.num_bins, required=self.required)
            self.add_outcomes(part, outcomes)

    def add_outcomes(
        self,
        part: ImagePredictions,
        outcomes: Outcomes,
        strata: Mapping[str, tuple[Tensor, int]] | None = None,
    ) -> None:
        """Count the outcomes of one map, or of rows; see :func:`count_outcomes` for the strata."""
        counts = count_outcomes(
            outcomes,
            self.num_bins,
            strata=strata,
            is_map=part.are_maps,
            rounded=self.limit.is_reached,
            with_fine_bins=self._with_fine_bins,
        )
        if part.are_maps:
            self.add_image(counts, part.images)
            return
        if self.keeps_images:
            self._tables.append(tables_of_rows(part, outcomes, self.num_bins))
        self._add_counts(counts)

    def add_image(self, counts: Counts, image: Tensor) -> None:
        """Add the counts of a map, or of all labels of an image, whose index is ``(1,)``."""
        self._are_maps = True
        if self.keeps_images:
            self._tables.append((image, UnitTables.from_counts([counts])))
        self._add_counts(counts)

    def _add_counts(self, counts: Counts) -> None:
        """Add the counts of an image, or of a batch of classified images."""
        parts = self._units[-1]
        parts.append(self.limit.take(counts))
        self._images_in_last_unit += 1
        is_full = self._images_in_last_unit == self.protocol.images_per_unit
        # Before the limit is reached, parts stay apart, since it may have to round each of them.
        if self.limit.is_reached:
            # The first part is a sum already.
            num_fine_bins = sum(part.fine_bins.shape[1] for part in parts[1:])
            are_many = len(parts) >= IMAGES_PER_MERGE or num_fine_bins >= BINS_PER_MERGE
            if is_full or are_many:
                parts[:] = [sum_counts(parts, self.num_bins)]
        if is_full:
            self._units.append([])
            self._images_in_last_unit = 0

    def state_dict(self, *, summed: bool = False) -> dict[str, Any]:
        """Return all predictions so far as plain tensors, numbers, lists and dicts.

        Args:
            summed: Whether the parts of a unit are summed, as other processes get them. A
                measurement that goes on needs the parts, which the limit may have to round.
        """
        units = self._units
        if summed:
            units = [[sum_counts(parts)] if parts else [] for parts in units]
        tables = []
        if self._tables:
            images, image_tables = self._join_tables()
            tables = [images, *image_tables]
        state = {
            'names': self.names,
            'are_maps': self._are_maps,
            'units': [[vars(counts) for counts in parts] for parts in units],
            'images_in_last_unit': self._images_in_last_unit,
            'tables': tables,
        }
        return own_storage(state)

    def add_state(self, state: Mapping[str, Any], *, first_image: int = 0) -> None:
        """Add the predictions of a state, which go on where the last unit ends.

        Args:
            state: State by :meth:`state_dict` of a measurement with the same options.
            first_image: Number that is added to the indices of the state's images.
        """
        # Both are default metrics, or those of two classes, which no predictions do not show.
        self._take_names(max(self.names, state['names'], key=len))
        self._are_maps |= state['are_maps']
        state = own_storage(state)
        for index, parts in enumerate(state['units']):
            if index > 0:
                self._units.append([])
            self._units[-1] += [self.limit.take(Counts(**part)) for part in parts]
        self._images_in_last_unit += state['images_in_last_unit']
        if state['tables']:
            images, *tables = state['tables']
            self._tables.append((images + first_image, UnitTables(*tables)))

    def number_groups(self, groups: Sequence[Hashable] | None) -> Tensor | None:
        """Return the group of each image by its index, of the names of groups."""
        if groups is None:
            return None
        images, _ = self._join_tables()
        return group_numbers(groups, int(images.max()) + 1) if len(images) else images

    def image_tables(self, group_of_image: Tensor | None = None) -> UnitTables:
        """Return the tables of each image, or of each group.

        Args:
            group_of_image: The group of each image by its index, ``(n,)`` int64 from 0 on.
        """
        images, tables = self._join_tables()
        if group_of_image is None:
            return tables.sum_by(images.unique(return_inverse=True)[1])
        return tables.sum_by(group_of_image[images])

    def _join_tables(self) -> tuple[Tensor, UnitTables]:
        """Return image indices ``(U,)`` and the tables of these images."""
        if not self._tables:
            bins = torch.zeros(0, 3, self.num_bins, dtype=torch.float64, device='cpu')
            return torch.zeros(0, dtype=torch.int64, device='cpu'), UnitTables.from_bins(bins)
        images, tables = zip(*self._tables, strict=True)
        return torch.cat(images), concatenate_tables(tables)

    def measured(
        self,
        level: float | None = None,
        group_of_image: Tensor | None = None,
        **bootstrap: int,
    ) -> Measured:
        """Return the metrics; NaN without a valid prediction.

        Args:
            level: Level of intervals over images, groups, or units of the protocol; None for none.
            group_of_image: The group of each image by its index, ``(n,)`` int64 from 0 on; None if
                every image is a unit.
            **bootstrap: Options of :func:`~mmcalib.metrics.intervals.interval_values`.
        """
        filled = [parts for parts in self._units if parts] or [[]]
        units = [sum_counts(parts, self.num_bins) for parts in filled]
        whole = units[0] if len(units) == 1 else sum_counts(units, self.num_bins)
        values = {name: self.protocol.value(name, units, whole) for name in self.names}
        statistics = CalibrationStatistics(
            metrics=dict(values),
            protocol=self.protocol_name,
            num_bins=self.num_bins,
            narrow_bins=MEMORY.copy(whole.condensed_table()),
            class_bins=whole.strata.get('predicted'),
            probability_bins=whole.class_bins,
            label_bins=whole.strata.get('labels'),
            distance_bins=whole.strata.get('distance'),
        )
        measured = Measured(values, coverage=level, statistics=statistics)
        class_totals = None
        # Pixels that are chosen by their labels have other frequencies than those in use.
        if 'classes' in whole.strata and self.protocol.region is None:
            class_totals = class_table(whole.strata['classes'], 'class_totals')[None]
        if level is not None:
            tables = self.image_tables(group_of_image).filled()
            measured |= self.protocol.intervals(self.names, units, tables, level=level, **bootstrap)
            measured.unit = 'prediction'
            measured.num_units = len(tables.bins)
            statistics.level = level
            hold_several = len(tables.bins) < whole.count
            if self._are_maps or group_of_image is not None or hold_several:
                statistics.image_bins = MEMORY.copy(tables.bins)
                statistics.image_class_bins = tables.class_bins
                measured.unit = 'image' if group_of_image is None else 'group'
            images_per_unit = self.protocol.images_per_unit
            if images_per_unit is not None and images_per_unit > 1:
                measured.unit = f'group of {images_per_unit} images'
                measured.num_units = len(units)
            if tables.class_bins is not None and class_totals is not None:
                class_totals = tables.table('class_totals')
        if class_totals is not None:
            measured.rates = ClassRates.from_totals(class_totals)
        return measured
