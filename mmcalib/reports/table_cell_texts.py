"""Measured numbers as the cells of tables show them."""

from __future__ import annotations

import html
import math
import re
import statistics
import textwrap
from collections.abc import Sequence

from mmcalib.metric_keys import number_text

NOTHING = '–'
LABEL_WIDTH = 60  # longer names of rows take several lines


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


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table as wide as it needs: its first column left, the others right."""
    lines = [list(headings)]
    for first, *others in rows:
        label, *more = textwrap.wrap(first, LABEL_WIDTH, subsequent_indent='  ')
        lines += [[label, *others], *([part, *([''] * len(others))] for part in more)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ['─' * width for width in widths])
    return [
        '  '.join(
            text.rjust(width) if place else text.ljust(width)
            for place, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
