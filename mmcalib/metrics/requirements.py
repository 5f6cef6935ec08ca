"""Requirements such as ``ECE<3``, which a measurement meets by the ends of its intervals."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mmcalib.errors import UserError
from mmcalib.metrics.definitions import find_metric
from mmcalib.metrics.metric_text import INTERVAL, PREFIX, number_text

# Metrics of two classes that tell a wrong P(y = 1), which confidences may hide.
OF_PROBABILITY = ('ClasswiseECE', 'rate_gap')


class Requirement(NamedTuple):
    """A limit of a metric.

    Attributes:
        metric: The name of the metric.
        is_upper: Whether the metric must be below the limit, and not above it.
        limit: The limit, in the unit of the metric.
        text: As it was given.
    """

    metric: str
    is_upper: bool
    limit: float
    text: str

    def failure(self, values: Mapping[str, float | np.ndarray]) -> str | None:
        """Return why values do not meet it, None if they do.

        The upper end of an interval must be below an upper limit, and the lower end above a lower
        one; without an interval it is the value. NaN is neither. Each of several labels must meet
        it.

        Args:
            values: Metrics and the ends of their intervals by key.
        """
        key = self._compared_key(values)
        compared_part = f'the {"upper" if self.is_upper else "lower"} end of its interval'
        if key == self.metric:
            compared_part = 'its value'
        ends = np.atleast_1d(np.asarray(values[key], dtype=float))
        is_met = ends < self.limit if self.is_upper else ends > self.limit
        if is_met.all():
            return None
        label = int(np.flatnonzero(~is_met)[0])
        of_label = f' of label {label}' if len(ends) > 1 else ''
        number = number_text(float(ends[label]), PREFIX + self.metric)
        return f'{self.text} is not met: {compared_part}{of_label} is {number}'

    def to_dict(self, values: Mapping[str, float | np.ndarray]) -> dict[str, Any]:
        """Return the requirement, what values have of it, and whether they meet it, for JSON.

        ``compared`` is the end of the interval; that of a metric without one is the value.
        """
        return {
            'requirement': self.text,
            'metric': self.metric,
            'limit': self.limit,
            'value': np.asarray(values[self.metric]).tolist(),
            'compared': np.asarray(values[self._compared_key(values)]).tolist(),
            'is_met': self.failure(values) is None,
        }

    def _compared_key(self, values: Mapping[str, float | np.ndarray]) -> str:
        low, high = INTERVAL
        key = f'{self.metric}{high if self.is_upper else low}'
        return key if key in values else self.metric


def parse_requirement(text: str) -> Requirement:
    """Return the requirement that a text such as ``ECE<3`` or ``accuracy>90`` states.

    Raises:
        UserError: If it cannot be read, or there is no such metric.
    """
    named = text.replace('ECE of P(y = 1)', 'ClasswiseECE')  # as tables of two classes show it
    match = re.fullmatch(r'\s*([\w.@-]+?)\s*([<>])\s*(\S+)\s*', named)
    try:
        limit = float(match[3]) if match else float('nan')
    except ValueError:
        limit = float('nan')
    if not np.isfinite(limit):
        raise UserError(
            f'{text!r} is no requirement: give a metric, < or >, and a number, as in "ECE<3"'
        )
    find_metric(match[1])
    return Requirement(match[1], match[2] == '<', limit, text)


def with_required(metrics: Sequence[str], requirements: Sequence[Requirement]) -> list[str]:
    """Return names of metrics on a command line, and those that requirements need besides.

    Raises:
        UserError: If several are one text, there is none of a name, or no one has an interval.
    """
    for name in metrics:
        if ',' in name:
            names = ' '.join(name.replace(',', ' ').split())
            raise UserError(f'--metrics {name}: separate names by a space, --metrics {names}')
    required = [requirement.metric for requirement in requirements]
    names = list(dict.fromkeys([*metrics, *required]))
    if not any(find_metric(name).bin_formula for name in names):
        raise UserError(
            f'{" and ".join(names)} has no interval, which tells what chance is: measure another '
            f'metric besides, --metrics {" ".join(names)} NLL'
        )
    return names


def unmet(
    requirements: Sequence[Requirement], values: Mapping[str, float | np.ndarray]
) -> list[str]:
    """Return why values do not meet requirements, a line for each that they do not."""
    failures = [requirement.failure(values) for requirement in requirements]
    return [failure for failure in failures if failure is not None]


def gap_warning(requirements: Sequence[Requirement]) -> str | None:
    """Return which sign of the gap has no limit where the other one has; None if no one is open."""
    are_upper = {
        requirement.is_upper for requirement in requirements if requirement.metric == 'gap'
    }
    if are_upper == {True}:
        return 'The gap of under-confidence has no limit: add one, as --require "gap>-3".'
    if are_upper == {False}:
        return 'The gap of over-confidence has no limit: add one, as --require "gap<3".'
    return None


def misses_probability(requirements: Sequence[Requirement]) -> bool:
    """Return whether there are requirements, and none of P(y = 1) of two classes."""
    names = [requirement.metric for requirement in requirements]
    return bool(names) and not any(name in OF_PROBABILITY for name in names)


def probability_warning(values: Mapping[str, float | np.ndarray]) -> str:
    """Return what P(y = 1) has of two classes, where a gate requires nothing of it."""
    parts = []
    for name in OF_PROBABILITY:
        largest = np.max(values.get(f'{name}_high', values[name]))
        parts.append(f'{name} is {np.max(values[name]):.2f} (up to {largest:.2f})')
    return (
        f'Nothing is required of P(y = 1), which may be wrong where confidences are not: '
        f'{" and ".join(parts)}; limit them, too, as --require "rate_gap<1".'
    )
