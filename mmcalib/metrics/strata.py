"""Calibration of each stratum of predictions, such as a class or a range of boundary distances."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mmcalib.metrics import calibration_errors as errors
from mmcalib.tables import TextTable


def stratum_figures(table: Tensor) -> dict[str, list[float]]:
    """Return ECE, accuracy and mean confidence, in percent, and the count of each stratum.

    Values of an empty stratum are NaN, but for its count, 0.

    Args:
        table: ``(3, S, B)`` bins of S strata: count, correct, sum of confidences.

    Returns:
        S numbers for each of ``ECE``, ``accuracy``, ``confidence`` and ``count``.
    """
    bins = table.movedim(0, 1)
    return {
        'ECE': errors.calibration_error(bins).tolist(),
        'accuracy': errors.accuracy(bins).tolist(),
        'confidence': errors.confidence(bins).tolist(),
        'count': bins[:, 0].sum(dim=-1).long().tolist(),
    }


def stratum_text(table: Tensor, names: Sequence[str], heading: str) -> str:
    """Return a table for the log, one line for each stratum.

    Args:
        table: ``(3, S, B)`` bins of S strata.
        names: Names of the strata.
        heading: Heading of the column of names.
    """
    columns = stratum_figures(table).values()
    rows = []
    for name, *percentages, count in zip(names, *columns, strict=True):
        rows.append([name, *(f'{value:.2f}' for value in percentages), f'{count:,}'])
    headings = [heading, 'ECE (%)', 'accuracy (%)', 'confidence (%)', 'count']
    return TextTable(headings, rows).write()
