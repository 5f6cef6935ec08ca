"""Metrics that a report shows first, and the columns of a test under shift."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mmcalib.metrics.metric_text import (
    AECE,
    CLASSWISE_ECE,
    ECE,
    INTERVAL,
    QUALITIES,
    metric_name,
    number_text,
)

HEADLINE = (*QUALITIES, ECE, AECE)
# A report of tests under shift has three columns for each metric, named after its key and a space.
CLEAN = 'clean'
MEAN = 'mean'
WORST = 'worst'
SHIFT_COLUMNS = (CLEAN, MEAN, WORST)


def headline_text(metrics: Mapping[str, float]) -> str:
    """Return the quality and the ECE that were measured, such as ``top-1 95.00, ECE 2.00``."""
    keys = [key for key in (*QUALITIES, ECE) if key in metrics]
    return ', '.join(f'{metric_name(key)} {number_text(metrics[key], key)}' for key in keys)


def metric_columns(keys: Iterable[str], *, num_classes: int | None = None) -> list[str]:
    """Return the keys that a table has columns for, each once, those of the headline first.

    Of two classes, the error of P(y = 1) is the first error of the headline.
    """
    columns = dict.fromkeys(key for key in keys if not key.endswith(INTERVAL))
    headline = HEADLINE
    if num_classes == 2:
        headline = (*QUALITIES, CLASSWISE_ECE, ECE, AECE)
    first = [key for key in headline if key in columns]
    return first + [key for key in columns if key not in headline]
