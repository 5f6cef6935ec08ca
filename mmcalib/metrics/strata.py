"""Calibration of each stratum of the predictions: those of one class, or as far from a boundary."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mmcalib.metrics import calibration_errors as errors
from mmcalib.tables import TextTable


def stratum_figures(table: Tensor) -> dict[str, list[float]]:
    """Return ECE, accuracy and mean confidence, in percent, and the count of each stratum.

    NaN for what has no predictions, but for its count, 0.

    Args:
        table: ``(3, S, B)``: count, correct, sum of confidences.

    Returns:
        By the names ``ECE``, ``accuracy``, ``confidence`` and ``count``, S numbers each.
    """
    table = table.movedim(0, 1)
    return {
        'ECE': errors.calibration_error(table).tolist(),
        'accuracy': errors.accuracy(table).tolist(),
        'confidence': errors.confidence(table).tolist(),
        'count': table[:, 0].sum(dim=-1).long().tolist(),
    }


def stratum_text(table: Tensor, names: Sequence[str], heading: str) -> str:
    """Return a table for the log, one line for each stratum.

    Args:
        table: ``(3, S, B)``.
        names: S of them.
        heading: Of the names.
    """
    figures = stratum_figures(table)
    rows = [
        [name, *(f'{value:.2f}' for value in row), f'{count:,}']
        for name, *row, count in zip(names, *figures.values(), strict=True)
    ]
    headings = [heading, 'ECE (%)', 'accuracy (%)', 'confidence (%)', 'count']
    return TextTable(headings, rows).write()
