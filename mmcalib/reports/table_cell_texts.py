"""Measured numbers as the cells of tables show them."""

from __future__ import annotations

import html
import math
import re
import statistics
from collections.abc import Sequence

from mmcalib.metric_keys import is_percentage

NOTHING = '–'


def number_text(value: float, key: str) -> str:
    """Return a metric with two digits behind the point if it is in percent, else with four."""
    return f'{value:.2f}' if is_percentage(key) else f'{value:.4f}'


def mean_and_deviation(values: Sequence[float], key: str) -> str:
    """Return ``mean ± standard deviation``, the mean of a single value, a dash of none.

    Of values of which one is NaN or infinite, there is a mean alone.

    Args:
        values: Of a metric, in several runs.
        key: Of the metric.
    """
    if not values:
        return NOTHING
    mean, deviation = number_text(statistics.mean(values), key), standard_deviation(values)
    return mean if deviation is None else f'{mean} ± {number_text(deviation, key)}'


def standard_deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation of a sample, None of less than two values or not finite."""
    known = len(values) > 1 and all(map(math.isfinite, values))
    return statistics.stdev(values) if known else None


def in_markdown(text: str) -> str:
    """Return a text as Markdown shows it: names of runs and losses are no markup."""
    text = html.escape(text, quote=False).replace('|', '&#124;')
    return re.sub(r'[\\`*]|\](?=[(\[:])|(?<!\w)_|_(?!\w)', r'\\\g<0>', text)
