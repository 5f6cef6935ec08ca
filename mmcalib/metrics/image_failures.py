"""How well a score orders images by risk: functions of arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np  # noqa: F401  the examples use it
import torch
from torch import Tensor

from mmcalib.arrays import Array, floats_of
from mmcalib.checks import check_number, check_range, check_share
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
    estimate = _figures_of(scores, risks, failure)
    found = {k: v.item() for k, v in estimate(torch.ones_like(scores)[None]).items()}
    if confidence_interval is not None:
        coverage = check_share('confidence_interval', confidence_interval)
        options = dict(coverage=coverage, num_bootstrap=num_bootstrap, seed=seed)
        limits = {'Spearman': (-1.0, 1.0)}
        for name, ends in intervals(estimate, len(scores), limits=limits, **options).items():
            found[f'{name}_low'], found[f'{name}_high'] = ends
    return found


def _figures_of(scores: Tensor, risks: Tensor, failure: float) -> Callable[[Tensor], dict]:
    """Return a function from ``(R, N)`` weights of the images to the ``(R,)`` figures."""
    groups = [values.unique(return_inverse=True)[1] for values in (scores, risks)]
    right = torch.stack([torch.ones_like(risks), 1 - risks, (risks <= failure).double()])

    def total(values: Tensor, group: Tensor) -> Tensor:
        sums = values.new_zeros(*values.shape[:-1], int(group.max()) + 1)
        return sums.index_add_(-1, group, values)

    def centred_ranks(weights: Tensor, group: Tensor) -> Tensor:
        count = total(weights, group)
        rank = (count.cumsum(dim=1) - count / 2)[:, group]
        mean = (weights * rank).sum(dim=1) / weights.sum(dim=1)
        return rank - mean[:, None]

    def figures(weights: Tensor) -> dict[str, Tensor]:
        count, by_risk, good = total(weights * right[:, None], groups[0])
        x, y = (centred_ranks(weights, group) for group in groups)
        spread = (weights * x * x).sum(dim=1) * (weights * y * y).sum(dim=1)
        table = torch.stack([count, by_risk, torch.zeros_like(count)], dim=1)
        return {
            'AURC': aurc(table),
            'AUGRC': augrc(table),
            'AUROC': auroc(torch.stack([count, good, torch.zeros_like(count)], dim=1)),
            'Spearman': -(weights * x * y).sum(dim=1) / spread.sqrt(),
        }

    return figures
