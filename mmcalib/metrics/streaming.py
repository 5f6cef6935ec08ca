"""Metrics of predictions that come batch by batch: update, compute, reset."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmcalib.errors import UserError, warn
from mmcalib.metrics.class_rates import ClassRates
from mmcalib.metrics.counts import Counts, Tally, count_outcomes, sum_counts
from mmcalib.metrics.definitions import find_metric, metric_names
from mmcalib.metrics.intervals import check_interval
from mmcalib.metrics.kept_memory import MEMORY, own_storage
from mmcalib.metrics.measured import Measured, Value
from mmcalib.metrics.names import MACRO
from mmcalib.metrics.outcomes import compute_outcomes
from mmcalib.metrics.protocols import PROTOCOLS
from mmcalib.metrics.statistics import CalibrationStatistics, few_class_bins
from mmcalib.metrics.unit_tables import (
    UnitTables,
    class_table,
    concatenate_tables,
    tables_by_image,
)
from mmcalib.options import check_choice, check_integer, suggests_arguments
from mmcalib.predictions.arrays import Array, as_scores
from mmcalib.predictions.contract import Contract
from mmcalib.predictions.groups import group_numbers
from mmcalib.predictions.image_predictions import ImagePredictions, concatenate
from mmcalib.predictions.ranks import (
    gather_objects,
    gather_one_process,
    rank_and_world_size,
)

DEFAULT_METRICS = ('ECE', 'AECE', 'NLL', 'Brier', 'accuracy')
# Two classes are judged by the probability of class 1, beside that of the predicted class.
TWO_CLASS_METRICS = ('ClasswiseECE', *DEFAULT_METRICS)
# Several labels are counted when so many rows wait.
ROWS_OF_LABELS = 4096
# A value, or an array ``(L,)`` of the values of L labels; or several of these by name.
Values = Value | Measured


class StreamingMetrics:
    """Metrics of predictions that come batch by batch; they do not depend on the batches.

    They serve loops of one's own, Lightning or Accelerate; ``measure``, ``evaluate`` and
    ``CalibrationMetric`` are the same sum. An image keeps small tables in memory.

    >>> stream = StreamingMetrics(['accuracy', 'ECE'])
    >>> stream.update(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    >>> stream.update(torch.tensor([[0.0, 3.0]]), torch.tensor([1]))
    >>> {name: round(value, 2) for name, value in stream.compute().items()}
    {'accuracy': 66.67, 'ECE': 29.92}

    In a process group of ``torch.distributed``, :meth:`compute` adds up all ranks, and every rank
    has to call it. A ``DistributedSampler`` repeats some images to give all ranks as many; with
    `size`, the length of the data set, these are left out, otherwise they count.

    Args:
        metrics: The name of a metric, for its value alone if there is no `interval`, or several
            names. By default those of ``DEFAULT_METRICS``, and of two classes the ECE of P(y = 1),
            ``ClasswiseECE``, before them.
        num_bins: Number of bins B.
        ignore_index: The label of predictions that are not valid.
        protocol: Name of the rule that says which pixels of maps are valid, and what is averaged,
            as in ``CalibrationMetric``.
        boundary_width: Width of the protocol ``'boundary'``, in pixels.
        interval: Coverage of intervals over images, such as 0.95; None for no intervals. Of
            several labels it keeps all logits and labels, which are less than tables of each image
            and label would be.
        keep_images: Whether to keep the bins of each image, as an `interval` does, for
            :meth:`image_tables` and :meth:`group_tables`.
        per_label: Whether each of several labels gets a value; otherwise all are counted together.
        size: The length of the data set, if a ``DistributedSampler`` reads it.
        gather: Function that returns a list of the values of all ranks; by default it calls
            ``torch.distributed.all_gather_object``. ``lambda value: [value]`` is for a process that
            has the predictions of all.

    Raises:
        UserError: For an unknown metric or protocol, or an option out of range.
    """

    @suggests_arguments
    def __init__(
        self,
        metrics: str | Sequence[str] = DEFAULT_METRICS,
        *,
        num_bins: int = 15,
        ignore_index: int | None = None,
        protocol: str = 'pooled',
        boundary_width: int = 3,
        interval: float | None = None,
        keep_images: bool = False,
        per_label: bool = True,
        size: int | None = None,
        gather: Callable[[Any], list] = gather_objects,
    ) -> None:
        self.metrics = metrics
        self._take_names(metric_names(metrics))
        # A single value of bins of equal width needs no fine bins, and nothing will be drawn.
        self._needs_fine_bins = (
            not isinstance(metrics, str)
            or interval is not None
            or any(find_metric(name).bin_formula is None for name in self.names)
        )
        self.num_bins = check_integer('num_bins', num_bins)
        self.ignore_index = ignore_index
        self.protocol_name = check_choice('protocol', protocol, PROTOCOLS)
        self.protocol = PROTOCOLS[protocol]
        self.boundary_width = check_integer('boundary_width', boundary_width)
        if interval is not None:
            check_interval('interval', interval, self.names)
        self.interval = interval
        self.keep_images = keep_images or interval is not None
        self.per_label = per_label
        self.size = size
        self.gather = gather
        self.reset()

    def reset(self) -> None:
        """Forget all predictions."""
        self._tally = Tally(self.num_bins, self.protocol.images_per_unit)
        self._image_tables: list[tuple[Tensor, UnitTables]] = []
        # Several labels are counted once many rows wait, since a count per label and batch would
        # cost 0.4 ms each. For an interval all wait: tables of each image and label are larger.
        self._waiting: list[ImagePredictions] = []
        self._label_streams: list[StreamingMetrics] = []
        self._contract = self._new_contract()

    def _new_contract(self) -> Contract:
        return Contract(door='stream', ignore_index=self.ignore_index)

    def _take_names(self, names: list[str]) -> None:
        """Take the names of the metrics, and what they require."""
        self.names = names
        self.required = {find_metric(name).required for name in names} - {None}

    def update(self, logits: Array, labels: Array) -> None:
        """Add a batch.

        Args:
            logits: ``(N, K)``, maps ``(N, K, H, W)`` or volumes ``(N, K, D, H, W)``; K = 1 before a
                sigmoid.
            labels: ``(N,)``, ``(N, H, W)`` or ``(N, D, H, W)`` true classes; ``(N, L)`` of 0 and 1
                beside logits ``(N, L)`` for L labels.

        Raises:
            UserError: For NaN, shapes that do not fit, maps (N, L, L) whose class axis no batch
                before has shown, labels out of range, or another kind or number of classes
                than in the batches before.
        """
        logits, labels, valid = as_scores('logits', logits, labels)
        batch = self._contract.read(logits, labels, valid=valid)
        self._contract.note(batch)
        rank, world_size = self._rank_and_world_size()
        images = rank + world_size * batch.images
        batch = batch.with_images(images)
        if self.size is not None:
            batch = batch.select(images < self.size)
        self.add(batch)

    def _rank_and_world_size(self) -> tuple[int, int]:
        """Return the rank of this process and the number of processes that read the images."""
        if self.gather is gather_objects:
            return rank_and_world_size()
        return 0, 1  # A function of the user's own says that this process has all images.

    def add(self, predictions: ImagePredictions) -> None:
        """Add predictions of any kind, which have labels."""
        if self.protocol_name != 'pooled' and not predictions.are_maps:
            raise UserError(
                f'protocol={self.protocol_name!r} is for maps, not for rows: leave it out'
            )
        if predictions.several_labels and self.per_label:
            # A copy, since the caller may write into its own arrays.
            self._waiting.append(concatenate([predictions]).cpu())
            num_waiting = sum(len(part) for part in self._waiting)
            if self.interval is None and num_waiting >= ROWS_OF_LABELS:
                self._count_waiting()
            return
        if self.metrics == DEFAULT_METRICS and predictions.are_of_two_classes:
            self._take_names([*TWO_CLASS_METRICS])
        for part in predictions.split_maps():
            if self.protocol.region is not None:
                region = self.protocol.region(part.labels[0], self.boundary_width)
                part = part.within(region[None])
            outcomes = compute_outcomes(part, num_bins=self.num_bins, required=self.required)
            counts = count_outcomes(
                outcomes,
                self.num_bins,
                is_map=part.are_maps,
                rounded=self._tally.limit.is_reached,
                with_fine_bins=self._needs_fine_bins,
            )
            self._tally.add(counts)
            if self.keep_images:
                images, image_index = part.images.unique(return_inverse=True)
                tables = tables_by_image(part, outcomes, image_index, len(images), self.num_bins)
                self._image_tables.append((images, tables))

    def _count_waiting(self) -> None:
        """Add the predictions of several labels that wait, label by label."""
        columns = concatenate(self._waiting).split_labels()
        for stream, column in zip(self._streams_of_labels(len(columns)), columns, strict=True):
            stream.add(column)
        self._waiting = []

    def _streams_of_labels(self, num_labels: int) -> list[StreamingMetrics]:
        """Return the streams of several labels, which begin with the first call."""
        if not self._label_streams:
            self._label_streams = [self._new_label_stream() for _ in range(num_labels)]
            for stream in self._label_streams:  # They are exact up to a million together.
                stream._tally.limit = self._tally.limit
        return self._label_streams

    def _new_label_stream(self) -> StreamingMetrics:
        """Return a stream for one of several labels."""
        stream = StreamingMetrics(
            DEFAULT_METRICS if self.metrics == DEFAULT_METRICS else self.names,
            num_bins=self.num_bins,
            interval=self.interval,
            gather=gather_one_process,
        )
        stream._needs_fine_bins = self._needs_fine_bins
        return stream

    def state_dict(self) -> dict[str, Any]:
        """Return all predictions so far as plain tensors, numbers, lists and dicts.

        ``torch.load(..., weights_only=True)`` reads them. In a process group, each rank has a state
        of its own.
        """
        image_tables = []
        if self._image_tables:
            images, tables = self._join_tables([self._image_tables])
            image_tables = [images, *tables]
        waiting = []
        if self._waiting:
            waiting = [vars(concatenate(self._waiting))]
        state = {
            'options': self._options(),
            'rank_and_world_size': [*self._rank_and_world_size()],
            'names': self.names,
            'contract': self._contract.state_dict(),
            'tally': self._tally.state_dict(),
            'image_tables': image_tables,
            'waiting': waiting,
            'label_streams': [stream.state_dict() for stream in self._label_streams],
        }
        return own_storage(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Forget all predictions, and go on from those of a state.

        Args:
            state: State by :meth:`state_dict` of a stream with the same options, of the same rank
                of as many processes.

        Raises:
            UserError: For a state of other options or of another rank, and for no state.
        """
        self._check_state(state)
        self.reset()
        self._add_state(state)

    def merge(self, other: StreamingMetrics) -> None:
        """Add the predictions of another stream, whose images follow those of this one.

        >>> first, second = StreamingMetrics('accuracy'), StreamingMetrics('accuracy')
        >>> first.update(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
        >>> second.update(torch.tensor([[2.0, 0.0]]), torch.tensor([1]))
        >>> first.merge(second)
        >>> first.compute()
        50.0

        Raises:
            UserError: For a stream with other options, with another kind or number of classes, or
                of a protocol that averages over consecutive images.
        """
        if self.protocol.images_per_unit not in (None, 1):
            raise UserError(
                f'protocol={self.protocol_name!r} averages over consecutive images, and a merged '
                'stream would average over others: take another protocol, or one stream'
            )
        state = other.state_dict()
        self._check_state(state)
        self._add_state(state)

    def _options(self) -> dict[str, Any]:
        """Return the options that decide what a stream keeps of its predictions."""
        options = {
            'metrics': self.metrics if isinstance(self.metrics, str) else [*self.metrics],
            'num_bins': self.num_bins,
            'ignore_index': self.ignore_index,
            'protocol': self.protocol_name,
            'boundary_width': self.boundary_width,
            'interval': self.interval,
            'keep_images': self.keep_images,
            'per_label': self.per_label,
        }
        for name, value in options.items():
            if isinstance(value, np.generic):  # A checkpoint that is loaded safely has none.
                options[name] = value.item()
        return options

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Raise a UserError unless a state is that of a stream like this one.

        It prevents wrong numbers: sums of other bins, and images that are counted on each rank.
        """
        if not isinstance(state, Mapping) or 'options' not in state:
            raise UserError(
                f'a state of StreamingMetrics has options, got {type(state).__name__}: give what '
                'state_dict() returned'
            )
        for name, value in self._options().items():
            other_value = state['options'].get(name)
            if other_value != value:
                raise UserError(
                    f'the other stream has {name}={other_value!r}, and this one {name}={value!r}: '
                    'create both with the same options'
                )
        ranks = [*self._rank_and_world_size()]
        if state['contract']['num_images'] and state['rank_and_world_size'] != ranks:
            rank, world_size = state['rank_and_world_size']
            raise UserError(
                f'the other stream is that of rank {rank} of {world_size}, and this one of rank '
                f'{ranks[0]} of {ranks[1]}: save the state of each rank, and load it on that rank'
            )

    def _add_state(self, state: Mapping[str, Any]) -> None:
        """Add the predictions of a checked state, whose images follow those of this stream."""
        _, world_size = self._rank_and_world_size()
        first_image = world_size * self._contract.num_images
        self._contract.merge(state['contract'])
        # Both are default metrics, or those of two classes too.
        self._take_names(max(self.names, state['names'], key=len))
        self._tally.add_state(state['tally'])
        if state['image_tables']:
            images, *tables = own_storage(state['image_tables'])
            self._image_tables.append((images + first_image, UnitTables(*tables)))
        for part in own_storage(state['waiting']):
            part = ImagePredictions(**part)
            self._waiting.append(part.with_images(part.images + first_image))
        label_states = state['label_streams']
        if label_states:
            label_streams = self._streams_of_labels(len(label_states))
            for stream, label_state in zip(label_streams, label_states, strict=True):
                stream._add_state(label_state)

    def compute(self, groups: Sequence[Hashable] | None = None) -> Values:
        """Return the metrics of all predictions so far, of all ranks.

        They are in percent but for ``NLL`` and its parts, in nats, ``Brier`` and its parts, and the
        temperature; NaN, with a warning, without a valid prediction. Several are a dict that prints
        as a table, see :class:`~mmcalib.metrics.Measured`.

        Args:
            groups: The name of the group of each image, in the order of the data: intervals are
                then over groups.

        Raises:
            UserError: For a protocol of consecutive images on several ranks, a number of groups
                that is not that of images, or labels that are all one-hot, so of one class each.
        """
        if self.interval is None and self._waiting:
            self._count_waiting()
        ranks = self.gather((self._contract.state_dict(), self._tally.limit.count))
        shown_by_all = self._new_contract()
        for shown_by_rank, _ in ranks:
            shown_by_all.merge(shown_by_rank)
        self._tally.limit.round_beyond(sum(count for _, count in ranks))
        has_images = self._contract.num_images > 0
        needs_numbers = has_images and (self.size is not None or self.keep_images)
        if len(ranks) > 1 and self.gather is not gather_objects and needs_numbers:
            raise UserError(
                f'gather returns the values of {len(ranks)} processes, whose images are not '
                'numbered: leave gather out, or size and interval'
            )
        shown_by_all.finish(refuses_sigmoids=False)
        shares = [stream._share() for stream in (self, *self._label_streams)]
        waiting_by_rank, shares_by_rank = zip(*self.gather((self._waiting, shares)), strict=True)
        waiting = [part for parts in waiting_by_rank for part in parts]
        label_shares = [shares[1:] for shares in shares_by_rank if len(shares) > 1]
        if waiting:
            return self._join_labels(self._values_of_waiting(concatenate(waiting), groups))
        if label_shares:
            values = []
            for shares_of_label in zip(*label_shares, strict=True):
                values.append(self._new_label_stream()._values(shares_of_label))
            return self._join_labels(values)
        return self._values([shares[0] for shares in shares_by_rank], groups)

    def _values_of_waiting(
        self, predictions: ImagePredictions, groups: Sequence[Hashable] | None
    ) -> list[Measured]:
        """Return the values of each label, with intervals; the tables of one are in memory."""
        count = int(predictions.valid.sum())
        values = []
        for column in predictions.split_labels():
            stream = self._new_label_stream()
            stream.add(column)
            stream._tally.limit.round_beyond(count)
            values.append(stream._values([stream._share()], groups))
        return values

    def _share(self) -> tuple[list[str], list[Counts], list[tuple[Tensor, UnitTables]]]:
        """Return what this process adds to the values: names of metrics, sums, tables of images."""
        return self.names, self._tally.sums(), self._image_tables

    def _values(self, shares: Sequence[tuple], groups: Sequence[Hashable] | None = None) -> Values:
        """Return the metrics of the shares of all ranks."""
        names_by_rank, sums_by_rank, tables_by_rank = zip(*shares, strict=True)
        # A rank without images has not seen that the predictions are of a sigmoid.
        self._take_names(max(names_by_rank, key=len))
        if len(sums_by_rank) > 1 and self.protocol.images_per_unit not in (None, 1):
            raise UserError(
                f'protocol={self.protocol_name!r} averages over consecutive images, whose order is '
                'not known on several processes: take another protocol, or one process'
            )
        units = self._units(sums_by_rank)
        whole = units[0] if len(units) == 1 else sum_counts(units, self.num_bins)
        if not whole.count:
            warn('no prediction is valid: metrics are NaN')
        values = {name: self.protocol.value(name, units, whole) for name in self.names}
        if isinstance(self.metrics, str) and self.interval is None:
            return values[self.metrics]
        statistics = CalibrationStatistics(
            metrics=values,
            protocol=self.protocol_name,
            num_bins=self.num_bins,
            narrow_bins=MEMORY.memory.copy(whole.condensed_table()),
            probability_bins=few_class_bins(whole),
        )
        class_totals = None
        # Pixels that are chosen by their labels have other frequencies than those in use.
        if 'classes' in whole.strata and self.protocol.region is None:
            class_totals = class_table(whole.strata['classes'], 'class_totals')[None]
        if self.interval is None:
            rates = None if class_totals is None else ClassRates.from_totals(class_totals)
            return Measured(values, statistics=statistics, rates=rates)
        tables = self._unit_tables(tables_by_rank, groups)
        ends = self.protocol.intervals(self.names, units, tables, coverage=self.interval)
        tables = tables.filled()
        if tables.class_bins is not None and class_totals is not None:
            class_totals = tables.table('class_totals')
        num_units = len(tables.bins)
        unit = 'prediction'
        if (tables.bins[:, 0].sum(dim=1) > 1).any():
            statistics.image_bins = MEMORY.memory.copy(tables.bins)
            statistics.image_class_bins = tables.class_bins
            unit = 'image'
        if groups is not None:
            unit = 'group'
        images_per_unit = self.protocol.images_per_unit
        if images_per_unit is not None and images_per_unit > 1:
            unit = f'group of {images_per_unit} images'
            num_units = len(units)
        return Measured(
            values | ends,
            coverage=self.interval,
            unit=unit,
            num_units=num_units,
            statistics=statistics,
            rates=None if class_totals is None else ClassRates.from_totals(class_totals),
        )

    def _units(self, sums_by_rank: Sequence[Sequence[Counts]]) -> list[Counts]:
        """Return the sums of all ranks: one, or one for each unit of the protocol."""
        sums = [counts for sums_of_rank in sums_by_rank for counts in sums_of_rank]
        if not sums or self.protocol.images_per_unit is None:
            return [sum_counts(sums, self.num_bins)]
        return sums

    def image_tables(self, groups: Sequence[Hashable] | None = None) -> UnitTables:
        """Return the tables of each image, or of each group.

        Only a stream that keeps images has them. All ranks have to call it.
        """
        return self._unit_tables(self.gather(self._image_tables), groups)

    def group_tables(self, group_of_image: Tensor) -> UnitTables:
        """Return :meth:`image_tables` summed over groups that are given by number.

        Args:
            group_of_image: The group of each image by its index, ``(n,)`` int64 from 0 on.
        """
        images, tables = self._join_tables(self.gather(self._image_tables))
        return tables.sum_by(group_of_image[images])

    def _unit_tables(
        self, tables_by_rank: Sequence[Sequence], groups: Sequence[Hashable] | None
    ) -> UnitTables:
        """Return the tables of each image of all ranks, or of each group."""
        images, tables = self._join_tables(tables_by_rank)
        if groups is None or not len(images):
            index = images.unique(return_inverse=True)[1]
        else:
            index = group_numbers(groups, int(images.max()) + 1)[images]
        return tables.sum_by(index)

    def _join_tables(self, tables_by_rank: Sequence[Sequence]) -> tuple[Tensor, UnitTables]:
        """Return image indices ``(U,)`` and the tables of these images, of all ranks."""
        entries = [entry for entries_of_rank in tables_by_rank for entry in entries_of_rank]
        if not entries:
            bins = torch.zeros(0, 3, self.num_bins, dtype=torch.float64, device='cpu')
            sums = torch.zeros(0, 2, dtype=torch.float64, device='cpu')
            return torch.zeros(0, dtype=torch.int64, device='cpu'), UnitTables(bins, sums)
        images, tables = zip(*entries, strict=True)
        return torch.cat(images), concatenate_tables(tables)

    def _join_labels(self, values_by_label: Sequence[Measured]) -> Values:
        """Return each metric of each of L labels ``(L,)``, and its mean ``…_macro``."""
        values: dict[str, float | np.ndarray] = {}
        for name in values_by_label[0]:
            values[name] = np.array([label_values[name] for label_values in values_by_label])
        if isinstance(self.metrics, str) and self.interval is None:
            return values[self.metrics]
        for name in values_by_label[0].names:
            values[f'{name}{MACRO}'] = mean_without_nan(values[name])
        numbers = {label_values.num_units for label_values in values_by_label}
        return Measured(
            values,
            coverage=self.interval,
            unit=f'{values_by_label[0].unit} of each label',
            num_units=numbers.pop() if len(numbers) == 1 else None,
            by_label=values_by_label,
        )


def mean_without_nan(values: np.ndarray) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else math.nan
