"""Venn-Abers prediction: two isotonic regressions, in which the prediction itself takes part."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from mmcalib.posthoc.binary_scalers import BinaryScaler


class VennAbersScaler(BinaryScaler):
    r"""Map log-odds of two classes to :math:`p = p_1 / (1 - p_0 + p_1)`, inductive Venn-Abers.

    :math:`p_0` and :math:`p_1` are what isotonic regression of the held-out labels says where the
    prediction was added with the label 0, and 1; one of them is calibrated, whatever the data. Both
    are steps that rise with the log-odds, so the order of predictions stays, up to ties, and 0 and
    1 never come out. Held-out rows weigh as many as are effective of them, the prediction one.

    Source: Vovk and Petej, Venn-Abers Predictors, 2014, with the merging that has the least regret
    under log loss.

    Attributes:
        lower_knots_: ``(B,)`` log-odds at which :math:`p_0` rises, that knot included.
        lower_: ``(B + 1,)`` :math:`\log(1 - p_0)` below the first, and from each on.
        upper_knots_: ``(B',)`` log-odds above which :math:`p_1` rises.
        upper_: ``(B' + 1,)`` :math:`\log p_1` up to each, and above the last.
    """

    learned = ('lower_knots', 'lower', 'upper_knots', 'upper')
    least_predictions = 10

    def _fit_odds(self, odds: Tensor, labels: Tensor, temperature: float, number: float) -> None:
        from sklearn.isotonic import (
            isotonic_regression,
        )  # slow to import

        scores, index, counts = np.unique(odds.numpy(), return_inverse=True, return_counts=True)
        share = number / len(odds)
        weights = counts * share
        hits = np.bincount(index, weights=labels.numpy()) * share

        def with_one_more(label: int) -> Callable[[int], float]:
            def at(position: int) -> float:
                total, rows = hits.copy(), weights.copy()
                total[position] += label
                rows[position] += 1
                return isotonic_regression(total / rows, sample_weight=rows)[position]

            return at

        # A label 0 is pooled with what lies left of it, so between two scores p_0 is that of the
        # left one, and 0 below all; a label 1 with the right, so p_1 is that of the right one.
        p0, p1 = (_rising(with_one_more(label), len(scores)) for label in (0, 1))
        rises = np.diff(p0, prepend=-1) > 0
        self.lower_knots_ = torch.from_numpy(scores[rises])
        self.lower_ = torch.from_numpy(np.log1p(-np.append(0, p0[rises])))
        ends = np.diff(p1, append=2) > 0
        self.upper_knots_ = torch.from_numpy(scores[ends])
        self.upper_ = torch.from_numpy(np.log(np.append(p1[ends], 1)))

    def _apply_odds(self, odds: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        lower = learned['lower'][torch.bucketize(odds, learned['lower_knots'], right=True)]
        return learned['upper'][torch.bucketize(odds, learned['upper_knots'])] - lower


def _rising(value: Callable[[int], float], number: int) -> np.ndarray:
    """Return a rising function at 0, …, `number` - 1, evaluated only where it is not level."""
    values = np.empty(number)
    values[0], values[-1] = value(0), value(number - 1)
    open_ranges = [(0, number - 1)]
    while open_ranges:
        low, high = open_ranges.pop()
        if values[high] - values[low] < 1e-12:
            values[low:high] = values[low]
        elif high - low > 1:
            middle = (low + high) // 2
            values[middle] = value(middle)
            open_ranges += [(low, middle), (middle, high)]
    return values
