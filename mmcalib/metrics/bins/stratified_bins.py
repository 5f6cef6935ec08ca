"""Calibration of each stratum of the predictions: those of one class, or as far from a boundary."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rich.cells import cell_len, set_cell_size
from torch import Tensor

from mmcalib.metrics.bins import binned_errors as errors
from mmcalib.metrics.bins.bin_tables import add_to
from mmcalib.metrics.bins.conventions import Convention


class StratifiedBins:
    """Counts predictions in bins of equal width, for each stratum that they are of.

    Args:
        num_bins: B.
        convention: Of the bins.
    """

    def __init__(self, num_bins: int, convention: Convention) -> None:
        self._num_bins = num_bins
        self._convention = convention
        self.table: Tensor | None = None  # (3, S, B) float64, None before any prediction

    def add(self, stratum: Tensor, count: int, conf: Tensor, correct: Tensor) -> StratifiedBins:
        """Count ``(M,)`` predictions, and return self.

        Args:
            stratum: ``(M,)`` int64, of each prediction.
            count: S, how many strata there are.
            conf: ``(M,)`` confidences.
            correct: ``(M,)`` booleans.

        Raises:
            ValueError: If there were another number of strata before.
        """
        size = self._convention.num_columns(self._num_bins)
        if self.table is None:
            self.table = torch.zeros(3, count, size, dtype=torch.float64)
        self._check(count)
        index = stratum * size + self._convention.bin_of(conf, self._num_bins)
        add_to(self.table.view(3, -1), index, conf, correct)
        return self

    def merge(self, other: StratifiedBins) -> StratifiedBins:
        """Add everything that `other` holds, and return self."""
        if other.table is not None:
            if self.table is None:
                self.table = torch.zeros_like(other.table)
            self._check(other.table.shape[1])
            self.table += other.table
        return self

    def _check(self, count: int) -> None:
        if count != self.table.shape[1]:
            raise ValueError(
                f'predictions of {self.table.shape[1]} and of {count} classes are in one '
                'evaluation: all must come from the same model'
            )


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
        'ECE': errors.binned_calibration_error(table).tolist(),
        'accuracy': errors.binned_accuracy(table).tolist(),
        'confidence': errors.binned_confidence(table).tolist(),
        'count': table[:, 0].sum(dim=-1).long().tolist(),
    }


def stratum_rows(table: Tensor, names: Sequence[str]) -> list[list[str]]:
    """Return the headings of the figures and, for each stratum, its name and figures, as texts.

    Args:
        table: ``(3, S, B)``.
        names: S of them.
    """
    figures = stratum_figures(table)
    rows = zip(names, *figures.values(), strict=True)
    return [
        ['ECE (%)', 'accuracy (%)', 'confidence (%)', 'count'],
        *([name, *(f'{value:.2f}' for value in row), f'{count:,}'] for name, *row, count in rows),
    ]


def stratum_text(table: Tensor, names: Sequence[str], heading: str) -> str:
    """Return a table for the log, one line for each stratum.

    Args:
        table: ``(3, S, B)``.
        names: S of them.
        heading: Of the names.
    """
    # rich's own tables take half a minute of 10,000 classes.
    headings, *rows = stratum_rows(table, names)
    rows = [[heading, *headings], *rows]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    rule = '+'.join(['', *('-' * (width + 2) for width in widths), ''])
    first, *rest = (
        ' | '.join([set_cell_size(name, widths[0]), *map(str.rjust, numbers, widths[1:])])
        for name, *numbers in rows
    )
    return '\n'.join([rule, f'| {first} |', rule, *(f'| {line} |' for line in rest), rule])
