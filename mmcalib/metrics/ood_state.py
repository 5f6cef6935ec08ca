"""The mergeable state of an OOD evaluation: each score of the seen and of each unseen set."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from mmcalib.metrics.bins.narrow_bins import ConfidenceBins, RankBins, ScoreBins
from mmcalib.metrics.ranking import (
    aupr,
    auroc,
    fpr,
)

SEEN = 0


class OODState:
    """Counts the scores of predictions: any split of them, merged, gives the same figures.

    Constant memory for each score and set: exact up to a million values of it, and in bins
    above, see :mod:`mmcalib.metrics.bins.narrow_bins`.

    Args:
        scores: Some of :data:`~mmcalib.metrics.functional.out_of_distribution_scores.SCORES`.
        exact_limit: Up to how many values, of the seen and an unseen set together, figures are
            exact; a million if None.
    """

    def __init__(self, scores: Sequence[str], *, exact_limit: int | None = None) -> None:
        self.scores = tuple(scores)
        self.exact_limit = exact_limit
        self._bins: dict[tuple[str, int], ConfidenceBins] = {}

    def update(self, values: Mapping[str, Tensor], kind: Tensor) -> OODState:
        """Count predictions, and return self.

        Args:
            values: ``(M,)`` of each score, on the CPU; higher is more like the seen.
            kind: ``(M,)`` int64: 0 for the seen, else the number of the unseen set.
        """
        for number in kind.unique().tolist():
            rows = kind == number
            for score in self.scores:
                found = values[score][rows]
                seen = torch.full((len(found),), number == SEEN)
                self._of(score, number).add(found, seen)
        return self

    def merge(self, other: OODState) -> OODState:
        """Add everything that `other` holds, and return self.

        Raises:
            ValueError: If it has other scores or another limit.
        """
        if (other.scores, other.exact_limit) != (self.scores, self.exact_limit):
            raise ValueError(f'states differ: of {self.scores} and of {other.scores}')
        for (score, number), narrow_bins in other._bins.items():
            self._of(score, number).merge(narrow_bins)
        return self

    def counts(self) -> dict[int, int]:
        """Return the number of predictions of each kind."""
        return {
            n: narrow_bins.count
            for (s, n), narrow_bins in self._bins.items()
            if s == self.scores[0]
        }

    def figures(self, score: str, numbers: Collection[int]) -> dict[str, float]:
        """Return the figures of a score between the seen and some unseen sets, taken as one.

        In percent, ``AUROC``, ``AUPR_in``, ``AUPR_out`` and ``FPR95``; NaN without seen or unseen
        predictions.
        """
        together = self._new(score)
        for number in (SEEN, *numbers):
            if (score, number) in self._bins:
                together.merge(self._bins[score, number])
        table = together.table()
        table = table[:, table[0] > 0]
        return {name: figure(table).item() for name, figure in FIGURES.items()}

    def _of(self, score: str, number: int) -> ConfidenceBins:
        return self._bins.setdefault((score, number), self._new(score))

    def _new(self, score: str) -> ConfidenceBins:
        kind = RankBins if score == 'max_probability' else ScoreBins
        return kind(exact_limit=self.exact_limit)


def unseen_first(table: Tensor) -> Tensor:
    """Return the table of bins with the unseen as the right ones, ascending in unlikeness."""
    count, seen, total = table
    return torch.stack([count, count - seen, -total]).flip(1)


# Of tables of the bins of a score, in which the seen are the "right" ones.
FIGURES = {
    'AUROC': auroc,
    'AUPR_in': aupr,
    'AUPR_out': lambda table: aupr(unseen_first(table)),
    'FPR95': lambda table: fpr(unseen_first(table)),
}
