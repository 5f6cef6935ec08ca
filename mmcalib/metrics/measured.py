"""The result of a measurement: metrics by name, which print as a table with units and intervals."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mmcalib.files import without_nan
from mmcalib.metrics.class_rates import ClassRates
from mmcalib.metrics.metric_text import (
    INTERVAL,
    MACRO,
    PREFIX,
    UNITS,
    base_name,
    metric_heading,
    number_text,
)
from mmcalib.metrics.statistics import CalibrationStatistics
from mmcalib.tables import TextTable

Value = float | np.ndarray
# pickle, copies and processes take a later protocol.
TORCH_SAVE_PROTOCOL = 2


class Measured(dict[str, Value]):
    """Metrics by name: a dict, which ``print`` shows as a table.

    The keys are the names of the metrics; with an interval also their ends ``ECE_low`` and
    ``ECE_high``, and of several labels, whose values are ``(L,)``, the mean ``ECE_macro``. Copies,
    by pickle too, are the same. ``torch.save`` writes a plain dict, which ``torch.load`` reads
    without mmcalib.

    >>> from mmcalib import measure
    >>> measured = measure([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], ['accuracy', 'NLL'])
    >>> round(measured['accuracy'], 2)
    66.67
    >>> print(measured)
    metric          value
    ------------  -------
    accuracy (%)    66.67
    NLL (nats)     0.6905
    3 predictions, 15 bins.

    Args:
        values: Values by key.
        coverage: Level of the intervals, such as 0.95; None without them.
        unit: Kind of the units that the intervals are over, such as ``'image'``.
        num_units: The number of these; None if it differs between labels.
        statistics: Tables that diagrams are drawn from; None of several labels.
        by_label: The same for each of several labels.
        rates: Mean probability and frequency of each class; None if no metric needs the
            probabilities of all classes.

    Attributes:
        coverage, unit, num_units, statistics, by_label, rates: As the arguments.
        class_names: Names of the classes in sentences; none for their numbers.
    """

    def __init__(
        self,
        values: Mapping[str, Value] | Iterable[tuple[str, Value]] = (),
        *,
        coverage: float | None = None,
        unit: str = '',
        num_units: int | None = None,
        statistics: CalibrationStatistics | None = None,
        by_label: Sequence[Measured] = (),
        rates: ClassRates | None = None,
    ) -> None:
        super().__init__(values)
        self.coverage = coverage
        self.unit = unit
        self.num_units = num_units
        self.statistics = statistics
        self.by_label = list(by_label)
        self.rates = rates
        self.class_names: Sequence[str] = ()

    def __reduce_ex__(self, protocol: int) -> tuple:
        if protocol == TORCH_SAVE_PROTOCOL:
            return OrderedDict, (), None, None, iter(self.items())
        return super().__reduce_ex__(protocol)

    def copy(self) -> Measured:
        """Return a copy, which prints as the same table; that of a dict would be plain."""
        return copy.copy(self)

    def __str__(self) -> str:
        if not self:
            return 'no metrics'
        if any(base_name(name) not in UNITS for name in self.names):
            return repr(self)  # The Trainer of transformers adds losses and times to a copy.
        table = self._label_table() if self.by_label else self._metric_table()
        return '\n'.join([table.write('text'), *self.sentences()])

    @property
    def names(self) -> list[str]:
        """The names of the metrics, without the ends of intervals and means over labels."""
        additions = {f'{name}{ending}' for name in self for ending in (*INTERVAL, MACRO)}
        return [name for name in self if name not in additions]

    @property
    def names_without_interval(self) -> list[str]:
        """The names of the metrics that have no interval though one was asked for."""
        if self.coverage is None:
            return []
        low, _ = INTERVAL
        return [name for name in self.names if f'{name}{low}' not in self]

    @property
    def units(self) -> str:
        """The number and kind of what the intervals are over, such as ``'797 images'``."""
        if self.num_units == 1:
            return f'1 {self.unit}'
        kind, _, of_what = self.unit.partition(' ')
        number = 'the' if self.num_units is None else f'{self.num_units:,}'
        return f'{number} {kind}s {of_what}'.rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, and lists for several labels, as JSON has them; None for NaN."""
        plain = {}
        for key, value in self.items():
            plain[key] = value.tolist() if isinstance(value, np.ndarray) else value
        return without_nan(plain)

    def sentences(self) -> list[str]:
        """Return what was measured, and which metrics have no interval."""
        sentences = []
        measured = self.by_label or [self]
        statistics = [entry.statistics for entry in measured if entry.statistics is not None]
        if statistics:
            count = sum(entry.num_predictions for entry in statistics)
            sentence = f'{count:,} predictions, {statistics[0].num_bins} bins'
            if statistics[0].protocol != 'pooled':
                sentence += f', protocol {statistics[0].protocol!r}'
            sentences.append(f'{sentence}.')
        names = self.names_without_interval
        if self.coverage is not None:
            sentence = f'Intervals of {100 * self.coverage:g} % are over {self.units}'
            if names:
                verb = 'has' if len(names) == 1 else 'have'
                sentence += f'; {", ".join(names)} {verb} none'
            sentences.append(f'{sentence}.')
        if self.rates is not None:
            sentences += self.rates.sentences(names=self.class_names)
        for label, entry in enumerate(self.by_label):
            if entry.rates is not None:
                sentences += [f'Label {label}: {line}' for line in entry.rates.sentences()]
        return sentences

    def _heading(self, name: str) -> str:
        """Return the heading of a metric, which says of two classes whose probability it is of."""
        rates = self.by_label[0].rates if self.by_label else self.rates
        num_classes = None if rates is None else len(rates.probs)
        return metric_heading(PREFIX + name, num_classes=num_classes)

    def _metric_table(self) -> TextTable:
        """Return a table with a row for each metric."""
        headings = ['metric', 'value']
        if self.coverage is not None:
            headings.append(f'{100 * self.coverage:g} % interval')
        rows = []
        for name in self.names:
            row = [self._heading(name), number_text(self[name], PREFIX + name)]
            if self.coverage is not None:
                row.append(self._interval_text(name) or '–')
            rows.append(row)
        return TextTable(headings, rows)

    def _label_table(self) -> TextTable:
        """Return a table with a row for each label and one for their mean."""
        headings = ['label', *(self._heading(name) for name in self.names)]
        rows = []
        for label, measured in enumerate(self.by_label):
            cells = [str(label)]
            for name in self.names:
                text = number_text(measured[name], PREFIX + name)
                cells.append(f'{text} {measured._interval_text(name)}'.rstrip())
            rows.append(cells)
        means = [number_text(self[f'{name}{MACRO}'], PREFIX + name) for name in self.names]
        rows.append(['mean', *means])
        return TextTable(headings, rows)

    def _interval_text(self, name: str) -> str:
        """Return ``[1.20, 3.40]``, or an empty text if the metric has no interval."""
        if self.coverage is None or name in self.names_without_interval:
            return ''
        low, high = (number_text(self[f'{name}{end}'], PREFIX + name) for end in INTERVAL)
        return f'[{low}, {high}]'
