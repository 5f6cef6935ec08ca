"""How well a score orders images by risk: functions of arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np  # noqa: F401  the examples use it
import torch
from torch import Tensor

from mmcalib.arrays import Array, floats_of
from mmcalib.checks import check_number, check_range
from mmcalib.metrics.intervals import intervals
from mmcalib.metrics.ranking import augrc, aurc, auroc

FIGURES = ('AURC', 'AUGRC', 'AUROC', 'Spearman')


def image_failure_figures(
    scores: Array,
    risks: Array,
    *,
    failure: float = 0.5,
    confidence_interval: float | None = None,
    num_bootstrap: int = 1000,
    seed: int = 0,
) -> dict[str, float]:
    r"""Return how well a score orders images by their risk.

    - ``AURC``, in percent: :math:`\frac1N \sum_i \frac1i \sum_{j \leq i} r_j` for the risks
      :math:`r_j` of the images in the order of their scores, the highest first.
    - ``AUGRC``, in percent: :math:`\frac1N \sum_i \frac1N \sum_{j \leq i} r_j`.
    - ``AUROC``, in percent: how often an image whose risk is at most `failure` has a higher score
      than one whose risk is above; NaN if all are of one kind.
    - ``Spearman``: the rank correlation of the score with the negative risk, from -1 to 1; NaN if
      all scores or all risks are equal.

    Tied images count in the mean over their orders. All are NaN of no images. With
    `confidence_interval`, ``…_low`` and ``…_high`` are the ends of the interval over images, by
    :func:`~mmcalib.metrics.intervals.intervals`; NaN of one image.

    >>> scores, risks = np.array([0.9, 0.8, 0.7]), np.array([0.1, 0.6, 0.2])
    >>> {name: round(value, 4) for name, value in image_failure_figures(scores, risks).items()}
    {'AURC': 25.0, 'AUGRC': 18.8889, 'AUROC': 50.0, 'Spearman': 0.5}

    Source: Geifman et al., ICLR 2019, for AURC; Traub et al., NeurIPS 2024, for AUGRC; Zenk et al.,
    Medical Image Analysis 2025, for both over images with a risk of 1 - Dice.

    Args:
        scores: ``(N,)`` floats; higher is to be trusted more.
        risks: ``(N,)`` floats in [0, 1].
        failure: Above which risk an image is a failure.
        confidence_interval: Coverage of intervals, such as 0.95; None for none.
        num_bootstrap: Number of resamples of the images.
        seed: Seed of these resamples.

    Raises:
        TypeError: For what is no array of floats.
        ValueError: For arrays that do not fit each other, scores that are NaN or infinite, risks
            outside [0, 1], or options out of range.
    """
    scores, risks = floats_of('scores', scores).double(), floats_of('risks', risks).double()
    if scores.ndim != 1 or risks.shape != scores.shape:
        raise ValueError(
            f'scores and risks must be (N,), got {tuple(scores.shape)} and {tuple(risks.shape)}'
        )
    if not scores.isfinite().all():
        raise ValueError(
            f'{int((~scores.isfinite()).sum())} of {len(scores)} scores are NaN or infinite, '
            'and their images cannot be ranked: leave them out'
        )
    check_range(risks, 'risks')
    check_number('failure', failure, most=1)
    if not len(scores):
        return dict.fromkeys(FIGURES, float('nan'))
    order = _Order(scores, risks, failure)
    once = torch.ones(1, len(scores), dtype=torch.float64)
    found = {name: value.item() for name, value in order.figures(once).items()}
    found['Spearman'] = 2 * found['Spearman'] - 1
    if confidence_interval is None:
        return found
    if not 0 < check_number('confidence_interval', confidence_interval) < 1:
        raise ValueError(f'confidence_interval must be in (0, 1), got {confidence_interval!r}')
    bounds = intervals(
        order.figures,
        len(scores),
        coverage=confidence_interval,
        num_bootstrap=num_bootstrap,
        seed=seed,
        limits={'Spearman': (0.0, 1.0)},
    )
    bounds['Spearman'] = tuple(2 * end - 1 for end in bounds['Spearman'])
    return found | {
        f'{name}_{end}': value
        for name, ends in bounds.items()
        for end, value in zip(('low', 'high'), ends, strict=True)
    }


class _Order:
    """Images in the order of their scores, to be weighed as a bootstrap draws them."""

    def __init__(self, scores: Tensor, risks: Tensor, failure: float) -> None:
        values, self._group = scores.unique(return_inverse=True)
        levels, self._level = risks.unique(return_inverse=True)
        self._sizes = len(values), len(levels)
        self._risks, self._good = risks, (risks <= failure).double()

    def figures(self, weights: Tensor) -> Mapping[str, Tensor]:
        """Return the ``(R,)`` figures of ``(R, N)`` weights, Spearman's brought to [0, 1]."""
        by_risk = self._table(weights, 1 - self._risks)
        return {
            'AURC': aurc(by_risk),
            'AUGRC': augrc(by_risk),
            'AUROC': auroc(self._table(weights, self._good)),
            'Spearman': (1 + self._spearman(weights)) / 2,
        }

    def _table(self, weights: Tensor, kept: Tensor) -> Tensor:
        """Return ``(R, 3, C)`` tables of tied images: count, sum of what is right, nothing."""
        table = weights.new_zeros(len(weights), 3, self._sizes[0])
        table[:, 0].index_add_(1, self._group, weights)
        table[:, 1].index_add_(1, self._group, weights * kept)
        return table

    def _spearman(self, weights: Tensor) -> Tensor:
        ranks = []
        for group, size in zip((self._group, self._level), self._sizes, strict=True):
            count = weights.new_zeros(len(weights), size).index_add_(1, group, weights)
            middle = count.cumsum(dim=1) - count / 2
            rank = middle[:, group]
            total = weights.sum(dim=1, keepdim=True)
            ranks.append(rank - (weights * rank).sum(dim=1, keepdim=True) / total)
        x, y = ranks[0], -ranks[1]
        spread = (weights * x * x).sum(dim=1) * (weights * y * y).sum(dim=1)
        return (weights * x * y).sum(dim=1) / spread.sqrt()
