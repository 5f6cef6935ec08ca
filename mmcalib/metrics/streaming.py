"""Metrics of predictions that come batch by batch: update, compute, reset."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from mmcalib.errors import UserError, warn
from mmcalib.metrics.counts import FineBinLimit
from mmcalib.metrics.definitions import metric_names
from mmcalib.metrics.intervals import check_interval
from mmcalib.metrics.kept_memory import own_storage
from mmcalib.metrics.measured import Measured, Value
from mmcalib.metrics.measurement import DEFAULT_METRICS, Measurement
from mmcalib.metrics.metric_text import MACRO
from mmcalib.metrics.protocols import PROTOCOLS
from mmcalib.metrics.unit_tables import UnitTables
from mmcalib.options import suggests_arguments
from mmcalib.predictions.arrays import Array, as_scores
from mmcalib.predictions.contract import Contract
from mmcalib.predictions.distributed import gather_objects, rank_and_world_size
from mmcalib.predictions.image_predictions import ImagePredictions, concatenate

# Several labels are counted when so many rows wait.
ROWS_OF_LABELS = 4096
# Options that decide what a stream keeps of its predictions.
KEPT_OPTIONS = (
    'metrics',
    'num_bins',
    'ignore_index',
    'protocol',
    'boundary_width',
    'interval',
    'keep_images',
    'per_label',
)
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
        interval: Level of intervals over images, such as 0.95; None for no intervals. Of
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
        self.num_bins = num_bins
        self.ignore_index = ignore_index
        self.protocol = protocol
        self.boundary_width = boundary_width
        if interval is not None:
            check_interval('interval', interval, metric_names(metrics))
        self.interval = interval
        self.keep_images = keep_images or interval is not None
        self.per_label = per_label
        self.size = size
        self.gather = gather
        self.reset()

    def reset(self) -> None:
        """Forget all predictions."""
        # One of all predictions, or one of each of several labels.
        self._measurements = self._new_measurements(1)
        # Several labels are counted once many rows wait, since a count per label and batch would
        # cost 0.4 ms each. For an interval all wait: tables of each image and label are larger.
        self._waiting: list[ImagePredictions] = []
        self._contract = Contract(door='stream', ignore_index=self.ignore_index)

    @property
    def _is_single_value(self) -> bool:
        """Whether the values are those of one metric, without an interval."""
        return isinstance(self.metrics, str) and self.interval is None

    def _new_measurements(self, count: int) -> list[Measurement]:
        """Return a measurement of all predictions, or of each label; they share a limit."""
        limit = FineBinLimit()
        measurements = []
        for _ in range(count):
            measurement = Measurement(
                self.metrics,
                num_bins=self.num_bins,
                protocol=self.protocol,
                boundary_width=self.boundary_width,
                keeps_images=self.keep_images and count == 1,
                is_single_value=self._is_single_value,
                limit=limit,
            )
            measurements.append(measurement)
        return measurements

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
        if self.protocol != 'pooled' and not predictions.are_maps:
            raise UserError(f'protocol={self.protocol!r} is for maps, not for rows: leave it out')
        if predictions.several_labels and self.per_label:
            # A copy, since the caller may write into its own arrays.
            self._waiting.append(concatenate([predictions]).cpu())
            num_waiting = sum(len(part) for part in self._waiting)
            if self.interval is None and num_waiting >= ROWS_OF_LABELS:
                self._count_waiting()
            return
        self._measurements[0].add(predictions)

    def _count_waiting(self) -> None:
        """Count the predictions of several labels that wait, label by label."""
        columns = concatenate(self._waiting).split_labels()
        if len(self._measurements) < len(columns):
            self._measurements = self._new_measurements(len(columns))
        for measurement, column in zip(self._measurements, columns, strict=True):
            measurement.add(column)
        self._waiting = []

    def state_dict(self) -> dict[str, Any]:
        """Return all predictions so far as plain tensors, numbers, lists and dicts.

        ``torch.load(..., weights_only=True)`` reads them. In a process group, each rank has a state
        of its own.
        """
        return self._state()

    def _state(self, *, summed: bool = False) -> dict[str, Any]:
        """Return the state; see :meth:`Measurement.state_dict` for what is summed."""
        waiting = []
        if self._waiting:
            waiting = [vars(concatenate(self._waiting))]
        return {
            'options': self._options(),
            'rank_and_world_size': [*self._rank_and_world_size()],
            'contract': self._contract.state_dict(),
            'measurements': [part.state_dict(summed=summed) for part in self._measurements],
            'waiting': own_storage(waiting),
        }

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
        if averages_consecutive_images(self.protocol):
            raise UserError(
                f'protocol={self.protocol!r} averages over consecutive images, and a merged '
                'stream would average over others: take another protocol, or one stream'
            )
        state = other.state_dict()
        self._check_state(state)
        _, world_size = self._rank_and_world_size()
        self._add_state(state, first_image=world_size * self._contract.num_images)

    def _options(self) -> dict[str, Any]:
        """Return the options that decide what a stream keeps of its predictions."""
        options = {name: getattr(self, name) for name in KEPT_OPTIONS}
        if not isinstance(self.metrics, str):
            options['metrics'] = [*self.metrics]
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

    def _add_state(self, state: Mapping[str, Any], *, first_image: int = 0) -> None:
        """Add the predictions of a checked state, to whose image indices a number is added."""
        self._contract.merge(state['contract'])
        for part in own_storage(state['waiting']):
            part = ImagePredictions(**part)
            self._waiting.append(part.with_images(part.images + first_image))
        states = state['measurements']
        if len(self._measurements) < len(states):  # No label was counted yet.
            self._measurements = self._new_measurements(len(states))
        for measurement, part in zip(self._measurements, states, strict=False):
            measurement.add_state(part, first_image=first_image)

    def _gathered(self) -> StreamingMetrics:
        """Return a stream of the predictions of all ranks, each of which has to call this."""
        limit = self._measurements[0].limit
        counts = self.gather(limit.count)
        limit.round_beyond(sum(counts))
        if len(counts) == 1:
            return self
        has_images = self._contract.num_images > 0
        needs_numbers = has_images and (self.size is not None or self.keep_images)
        if self.gather is not gather_objects and needs_numbers:
            raise UserError(
                f'gather returns the values of {len(counts)} processes, whose images are not '
                'numbered: leave gather out, or size and interval'
            )
        if averages_consecutive_images(self.protocol):
            raise UserError(
                f'protocol={self.protocol!r} averages over consecutive images, whose order is not '
                'known on several processes: take another protocol, or one process'
            )
        gathered = copy.copy(self)
        gathered.reset()
        for state in self.gather(self._state(summed=True)):
            gathered._add_state(state)
        return gathered

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
        whole = self._gathered()
        whole._contract.finish(refuses_sigmoids=False)
        if whole._waiting:
            predictions = concatenate(whole._waiting)
            return self._join_labels(self._values_of_waiting(predictions, groups))
        values = [self._measured(measurement, groups) for measurement in whole._measurements]
        if len(values) > 1:
            return self._join_labels(values)
        return values[0][self.metrics] if self._is_single_value else values[0]

    def _values_of_waiting(
        self, predictions: ImagePredictions, groups: Sequence[Hashable] | None
    ) -> list[Measured]:
        """Return the values of each label, with intervals; the tables of one are in memory."""
        count = int(predictions.valid.sum())
        values = []
        for column in predictions.split_labels():
            (measurement,) = self._new_measurements(1)
            measurement.add(column)
            measurement.limit.round_beyond(count)
            values.append(self._measured(measurement, groups))
        return values

    def _measured(self, measurement: Measurement, groups: Sequence[Hashable] | None) -> Measured:
        """Return the values of a measurement, with a warning if they are NaN."""
        if not measurement.count:
            warn('no prediction is valid: metrics are NaN')
        return measurement.measured(self.interval, measurement.number_groups(groups))

    def image_tables(self, groups: Sequence[Hashable] | None = None) -> UnitTables:
        """Return the tables of each image, or of each group.

        Only a stream that keeps images has them. All ranks have to call it.
        """
        measurement = self._gathered()._measurements[0]
        return measurement.image_tables(measurement.number_groups(groups))

    def group_tables(self, group_of_image: Tensor) -> UnitTables:
        """Return :meth:`image_tables` summed over groups that are given by number.

        Args:
            group_of_image: The group of each image by its index, ``(n,)`` int64 from 0 on.
        """
        return self._gathered()._measurements[0].image_tables(group_of_image)

    def _join_labels(self, values_by_label: Sequence[Measured]) -> Values:
        """Return each metric of each of L labels ``(L,)``, and its mean ``…_macro``."""
        values: dict[str, float | np.ndarray] = {}
        for name in values_by_label[0]:
            values[name] = np.array([label_values[name] for label_values in values_by_label])
        if self._is_single_value:
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


def averages_consecutive_images(protocol: str) -> bool:
    """Return whether a protocol averages over units of several images, in their order."""
    return PROTOCOLS[protocol].images_per_unit not in (None, 1)


def mean_without_nan(values: np.ndarray) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else math.nan
