"""Two models on the same images: the differences of their metrics, and which can be told apart."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import torch

from mmcalib.errors import UserError
from mmcalib.metrics.definitions import find_metric, metric_names
from mmcalib.metrics.intervals import check_interval, has_formula
from mmcalib.metrics.measured import Measured
from mmcalib.metrics.measurement import DEFAULT_METRICS, Measurement
from mmcalib.metrics.metric_text import (
    INTERVAL,
    PREFIX,
    metric_heading,
    metric_name,
    number_text,
    unit_and_better,
)
from mmcalib.metrics.paired_intervals import Mean, difference_intervals
from mmcalib.metrics.unit_tables import UnitTables
from mmcalib.options import suggests_arguments
from mmcalib.predictions.arrays import Array
from mmcalib.predictions.from_arrays import read_arrays
from mmcalib.predictions.image_predictions import ImagePredictions
from mmcalib.tables import TextTable


class Comparison(Measured):
    """Differences of the metrics of B from those of A: a dict, which ``print`` shows as a table.

    The keys are the names of the metrics, and with their intervals ``NLL_low`` and ``NLL_high``.
    Sentences below the table say which differences can be told from 0.

    Args:
        a: Values of one model by the names of metrics.
        b: Those of the other.
        ends: Ends of the intervals of the differences by key.
        coverage: Level of the intervals, such as 0.95.
        unit: The independent unit of the intervals, such as ``'image'``.
        num_units: The number of these.
        notes: Sentences about the data, which stand at the end.
        num_classes: The number of classes, for the names of metrics; None if it is not known.

    Attributes:
        a, b, notes, num_classes: As the arguments.
    """

    def __init__(
        self,
        a: dict[str, float],
        b: dict[str, float],
        ends: dict[str, float],
        *,
        coverage: float,
        unit: str,
        num_units: int,
        notes: Sequence[str] = (),
        num_classes: int | None = None,
    ) -> None:
        differences = {name: b[name] - a[name] for name in a}
        super().__init__(differences | ends, coverage=coverage, unit=unit, num_units=num_units)
        self.a = dict(a)
        self.b = dict(b)
        self.notes = list(notes)
        self.num_classes = num_classes

    @property
    def told_apart(self) -> list[str]:
        """The names of the metrics whose intervals do not contain 0."""
        low, high = INTERVAL
        names = []
        for name in self.names:
            if self.get(f'{name}{low}', 0.0) > 0 or self.get(f'{name}{high}', 0.0) < 0:
                names.append(name)
        return names

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and texts, as JSON has them; None for NaN."""
        return {
            'a': Measured(self.a).to_dict(),
            'b': Measured(self.b).to_dict(),
            'difference': super().to_dict(),
            'coverage': self.coverage,
            'units': self.units,
            'told_apart': self.told_apart,
        }

    def sentences(self) -> list[str]:
        """Return which model is lower or higher, and what cannot be told."""
        told_apart = self.told_apart
        sentences = [self._difference_sentence(name) for name in told_apart]
        not_judged = [name for name in self.names if not self._has_interval(name)]
        not_told = [name for name in self.names if name not in (*told_apart, *not_judged)]
        if not_told:
            sentences.append(f'Not told apart: {", ".join(map(self._shown_name, not_told))}.')
        if not_judged:
            names = ', '.join(map(self._shown_name, not_judged))
            sentences.append(f'Not judged, without an interval: {names}.')
        sentences.append(
            f'Intervals of {100 * self.coverage:g} % are of each metric by itself, paired over '
            f'{self.units}.'
        )
        return sentences + self.notes

    def table(self) -> TextTable:
        """Return the table of both models, with a row for each metric."""
        headings = ['metric', 'A', 'B', 'B − A', f'{100 * self.coverage:g} % interval']
        rows = []
        for name in self.names:
            value_a = number_text(self.a[name], PREFIX + name)
            value_b = number_text(self.b[name], PREFIX + name)
            heading = metric_heading(PREFIX + name, num_classes=self.num_classes)
            row = [heading, value_a, value_b]
            row.append(difference_text(self[name], name))
            row.append(self._interval_text(name) or '–')
            rows.append(row)
        return TextTable(headings, rows)

    def write(self, output_format: str = 'text') -> str:
        """Return table and sentences as ``'text'``, ``'markdown'``, ``'html'`` or ``'latex'``."""
        separator = '\n' if output_format == 'text' else '\n\n'
        return separator.join([self.table().write(output_format), *self.sentences()])

    def __str__(self) -> str:
        return self.write()

    def _has_interval(self, name: str) -> bool:
        """Return whether a metric has an interval; that of a single group is NaN."""
        low, _ = INTERVAL
        return not math.isnan(self.get(f'{name}{low}', math.nan))

    def _interval_text(self, name: str) -> str:
        if not self._has_interval(name):
            return ''
        low, high = (difference_text(self[f'{name}{end}'], name) for end in INTERVAL)
        return f'[{low}, {high}]'

    def _difference_sentence(self, name: str) -> str:
        """Return ``B has a lower NLL: −0.0310 [−0.0400, −0.0220].``."""
        unit, _ = unit_and_better(name)
        points = ' points' if unit == '%' else ''
        difference = difference_text(self[name], name)
        change = f'{difference} {self._interval_text(name)}{points}.'
        if name == 'gap':
            return f'{self._gap_text()}: {change}'
        direction = 'lower' if self[name] < 0 else 'higher'
        return f'B has a {direction} {self._shown_name(name)}: {change}'

    def _shown_name(self, name: str) -> str:
        """Return the name of a metric as in the table, without its unit."""
        return metric_name(PREFIX + name, num_classes=self.num_classes)

    def _gap_text(self) -> str:
        """Return whose gap is nearer to 0, since under-confidence is no less of an error."""
        gap_a = self.a['gap']
        gap_b = self.b['gap']
        if gap_a * gap_b < 0:
            kinds = ('under', 'over') if gap_a < 0 else ('over', 'under')
            return f'A is {kinds[0]}-confident and B {kinds[1]}-confident, by their gaps'
        closer = 'B' if abs(gap_b) < abs(gap_a) else 'A'
        return f'The gap of {closer} is nearer to 0, B − A'


def difference_text(value: float, name: str) -> str:
    """Return a difference with its sign, as ``+1.20`` or ``−0.0310``."""
    text = number_text(abs(value), PREFIX + name)
    if value < 0:
        return f'−{text}'
    return f'+{text}' if value > 0 else text


@suggests_arguments
def compare(
    a: Array,
    b: Array,
    labels: Array,
    metrics: str | Sequence[str] = DEFAULT_METRICS,
    *,
    interval: float = 0.95,
    groups: Sequence[Hashable] | None = None,
    num_bins: int = 15,
    ignore_index: int | None = None,
) -> Comparison:
    """Return the differences of two models' metrics on the same images, with paired intervals.

    Images, or groups, are resampled, the same of both models, so that a small difference can be
    told apart where both find the same images hard. Of accuracy, confidence, gap, NLL and Brier
    score, which are means, the intervals are those of a paired t-test but for the noise of the
    resamples. ECE and other errors of bins are biased upwards by noise, by an amount that differs
    between the models and is not known. Their intervals allow for all of it, and are wide
    (:func:`~mmcalib.metrics.paired_intervals.gap_difference_interval`). In simulations of 1,000
    pairs each, of 300 and 1,000 predictions and of 20 and 100 groups, 95 % intervals contained the
    true difference in 92 to 95 % for means, and in 92 (of 20 groups) to 100 % for ECE, where
    quantiles of the resamples did in 40 to 100 % (``tools/benchmarks/guarantees.py --table
    comparisons``). Each interval is of one metric: of many metrics, some are told apart by chance.

    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = 3 * torch.randn(500, 10, generator=generator)
    >>> labels = torch.multinomial((logits / 2).softmax(1), 1, generator=generator)[:, 0]
    >>> a, b = logits.softmax(1), (logits / 2).softmax(1)
    >>> comparison = compare(a, b, labels, ['NLL', 'accuracy'])
    >>> comparison.told_apart
    ['NLL']
    >>> print(comparison.sentences()[1])
    Not told apart: accuracy.

    Args:
        a: Probabilities of one model, as :func:`~mmcalib.measure` takes them: ``(N, K)``, maps
            ``(N, K, H, W)`` or volumes; ``(N,)`` or K = 1 for class 1 of two.
        b: Probabilities of the other model, of the same shape.
        labels: True classes, as :func:`~mmcalib.measure` takes them.
        metrics: A name, or several; by default those of :func:`~mmcalib.measure`, which has the ECE
            of P(y = 1) of two classes. Those that need more than bins and sums of each image, such
            as AECE, have a difference without an interval.
        interval: Level of the intervals.
        groups: N names of the groups that are independent, in place of the images: the patient of
            each slice, the video of each frame.
        num_bins: B.
        ignore_index: Label of the predictions that are not valid, such as mmsegmentation's 255.

    Raises:
        TypeError: For arguments that are no arrays of numbers, or labels that are no integers.
        ValueError: For an unknown metric, NaN or values outside [0, 1], rows that do not sum to
            one, labels out of range, arrays of different shapes, several labels of each image, or
            no valid prediction.
    """
    check_interval('interval', interval, metric_names(metrics))
    measurement_a = Measurement(metrics, num_bins=num_bins, keeps_images=True)
    measurement_b = Measurement(metrics, num_bins=num_bins, keeps_images=True)
    predictions_a = read_side('a', a, labels, ignore_index)
    predictions_b = read_side('b', b, labels, ignore_index)
    check_pair(predictions_a, predictions_b)
    measurement_a.add(predictions_a)
    measurement_b.add(predictions_b)
    unit = 'image' if predictions_a.are_maps else 'prediction'
    group_of_image = measurement_a.number_groups(groups)
    return compare_tables(
        measurement_a.names,
        dict(measurement_a.measured()),
        dict(measurement_b.measured()),
        measurement_a.image_tables(group_of_image),
        measurement_b.image_tables(group_of_image),
        level=interval,
        unit=unit if groups is None else 'group',
    )


def compare_tables(
    names: Sequence[str],
    values_a: dict[str, float],
    values_b: dict[str, float],
    tables_a: UnitTables,
    tables_b: UnitTables,
    *,
    level: float,
    unit: str,
    mean: Mean | None = None,
    notes: Sequence[str] = (),
) -> Comparison:
    """Return the comparison of two models by their values and the tables of their units.

    Args:
        names: Names of the metrics that have an interval if they have a formula of bins and sums.
        values_a: Values of all metrics of one model, by name.
        values_b: Those of the other.
        tables_a: Tables of the units of one model.
        tables_b: Those of the same units of the other.
        level: Level of the intervals.
        unit: ``'prediction'``, ``'image'`` or ``'group'``: the kind of the units.
        mean: See :func:`~mmcalib.metrics.intervals.metric_values`.
        notes: Sentences about the data.
    """
    with_formula = [name for name in names if has_formula(find_metric(name), tables_a)]
    bounds = difference_intervals(with_formula, tables_a, tables_b, level=level, mean=mean)
    ends = {}
    for name, bound in bounds.items():
        for ending, value in zip(INTERVAL, bound, strict=True):
            ends[f'{name}{ending}'] = value
    class_bins = tables_a.class_bins
    return Comparison(
        values_a,
        values_b,
        ends,
        coverage=level,
        unit=unit,
        num_units=int((tables_a.bins[:, 0].sum(dim=1) > 0).sum()),
        notes=notes,
        num_classes=None if class_bins is None else class_bins.shape[2],
    )


def read_side(name: str, probs: Array, labels: Array, ignore_index: int | None) -> ImagePredictions:
    """Return the predictions of one model; an error begins with its name."""
    try:
        predictions = read_arrays(probs, labels, ignore_index=ignore_index)
    except (TypeError, ValueError) as error:
        raise type(error)(f'{name}: {error}') from error
    if predictions.several_labels:
        raise UserError(
            f'{name}: (N, L) probabilities of L labels are compared label by label: give '
            'a[:, i], b[:, i] and labels[:, i]'
        )
    return predictions


def check_pair(a: ImagePredictions, b: ImagePredictions) -> None:
    """Refuse predictions that are not of the same images and classes: a wrong number."""
    shape_a = tuple(a.scores.shape)
    shape_b = tuple(b.scores.shape)
    if shape_a != shape_b:
        raise UserError(
            f'a and b must be probabilities of the same images and classes, got the shapes '
            f'{shape_a} and {shape_b}'
        )
    if not torch.equal(a.valid, b.valid):
        count = int((a.valid != b.valid).sum())
        raise UserError(
            f'a and b must have the same valid predictions, and {count} are masked in one of them '
            'alone: mask them in both'
        )
    if not a.valid.any():
        raise UserError('no prediction is valid: check the labels and ignore_index')
