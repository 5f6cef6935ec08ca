"""Venn-Abers prediction: two isotonic regressions, in which the prediction itself takes part."""

from __future__ import annotations

from collections.abc import Mapping

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
        scores, index, counts = np.unique(odds.numpy(), return_inverse=True, return_counts=True)
        share = number / len(odds)
        weights = counts * share
        hits = np.bincount(index, weights=labels.numpy()) * share
        # A label 0 is pooled with what lies left of it, so between two scores p_0 is that of the
        # left one, and 0 below all; a label 1 with the right, so p_1 is that of the right one.
        p0, p1 = (_with_one_more(np.stack([hits, weights]), label) for label in (0, 1))
        rises = np.diff(p0, prepend=-1) > 1e-12
        self.lower_knots_ = torch.from_numpy(scores[rises])
        self.lower_ = torch.from_numpy(np.log1p(-np.append(0, p0[rises])))
        ends = np.diff(p1, append=2) > 1e-12
        self.upper_knots_ = torch.from_numpy(scores[ends])
        self.upper_ = torch.from_numpy(np.log(np.append(p1[ends], 1)))

    def _apply_odds(self, odds: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        lower = learned['lower'][torch.bucketize(odds, learned['lower_knots'], right=True)]
        scaled = learned['upper'][torch.bucketize(odds, learned['upper_knots'])] - lower
        return torch.where(odds.isnan(), odds, scaled)  # which would come behind all knots


def _with_one_more(steps: np.ndarray, label: int) -> np.ndarray:
    """Return what isotonic regression says at each score, had it one more row with this label.

    It rises with the score, so by halving it is evaluated only where it is not level. Scores on
    one side of the added row can be pooled before it is added, since steps only ever merge.

    Args:
        steps: ``(2, S)``, the sum of the labels and the number of rows at each score.
        label: 0 or 1.
    """

    def value(at: int, low: int, high: int, left: np.ndarray, right: np.ndarray) -> float:
        around = np.concatenate([left, steps[:, low : high + 1], right], axis=1)
        place = left.shape[1] + at - low
        around[:, place] += label, 1
        return _isotonic(around)[place]

    last, none = steps.shape[1] - 1, steps[:, :0]
    values = np.empty(last + 1)
    values[0], values[last] = (value(at, 0, last, none, none) for at in (0, last))
    open_ranges = [(0, last, none, none)]
    while open_ranges:
        low, high, left, right = open_ranges.pop()
        if values[high] - values[low] < 1e-12:
            values[low:high] = values[low]
        elif high - low > 1:
            middle = (low + high) // 2
            values[middle] = value(middle, low, high, left, right)
            above = np.concatenate([steps[:, middle + 1 : high + 1], right], axis=1)
            below = np.concatenate([left, steps[:, low:middle]], axis=1)
            open_ranges.append((low, middle, left, _pooled(above)))
            open_ranges.append((middle, high, _pooled(below), right))
    return values


def _pooled(steps: np.ndarray) -> np.ndarray:
    """Return the steps ``(2, S)`` of isotonic regression, fewer of them."""
    starts = np.flatnonzero(np.diff(_isotonic(steps), prepend=-1) > 0)
    return np.add.reduceat(steps, starts, axis=1)


def _isotonic(steps: np.ndarray) -> np.ndarray:
    from sklearn.isotonic import isotonic_regression  # slow to import

    return isotonic_regression(steps[0] / steps[1], sample_weight=steps[1])
