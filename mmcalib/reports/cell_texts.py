"""Measured numbers as the cells of tables show them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from mmcalib.metric_keys import is_percentage

NOTHING = '–'


def number_text(value: float, key: str) -> str:
    """Return a metric with two digits behind the point if it is in percent, else with four."""
    return f'{value:.2f}' if is_percentage(key) else f'{value:.4f}'


def mean_and_deviation(values: Sequence[float], key: str) -> str:
    """Return ``mean ± standard deviation``, the mean of a single value, a dash of none.

    Args:
        values: Of a metric, in several runs.
        key: Of the metric.
    """
    if not values:
        return NOTHING
    mean = number_text(statistics.mean(values), key)
    if len(values) == 1:
        return mean
    return f'{mean} ± {number_text(statistics.stdev(values), key)}'
