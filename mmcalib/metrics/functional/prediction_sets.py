"""Sets of classes that hold the true one as often as is asked: functions of arrays."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mmcalib.arrays import Array, floats_of
from mmcalib.checks import at_least_single, check_choice, check_number, check_probabilities
from mmcalib.metrics.functional.calibration_error import read_probabilities

METHODS = ('aps', 'raps')


class PredictionSets:
    r"""Predicts sets of classes with a guaranteed coverage, by split conformal prediction.

    The score of class y is what is more probable than it, and a share u of its own probability:

    .. math:: s(x, y) = \sum_{k: p_k > p_y} p_k + u \, p_y
        + \lambda \max(0, \mathrm{rank}(y) - k_\mathrm{reg})

    with :math:`\lambda = 0` for APS. The set of x has all classes whose score is at most the
    :math:`\lceil (n + 1) c \rceil`-th smallest score of the n true classes of the validation. If
    those and a new prediction are exchangeable, the set holds the true class with a probability of
    at least c, over validations and new predictions together; not for each class, nor for each
    image. With `randomized`, u is drawn anew for each prediction, and the coverage is at most
    :math:`c + 1 / (n + 1)`; without, u = 1, and sets are larger than they need be.

    Source: Romano, Sesia and Candès, Classification with Valid and Adaptive Coverage, NeurIPS 2020
    (APS); Angelopoulos, Bates, Malik and Jordan, Uncertainty Sets for Image Classifiers using
    Conformal Prediction, ICLR 2021, Theorem 1 (RAPS).

    Args:
        probs: ``(n, K)`` probabilities of a validation.
        labels: ``(n,)`` true classes.
        coverage: c.
        method: ``'aps'`` or ``'raps'``.
        penalty: :math:`\lambda` of RAPS.
        free_ranks: :math:`k_\mathrm{reg}` of RAPS: how many classes cost nothing.
        randomized: Whether u is drawn. seed: Seed of these draws.

    Attributes:
        threshold: The score up to which classes are in the set.
        coverage: c.

    Raises:
        TypeError: For what is no array of numbers.
        ValueError: For what are no probabilities or labels, options out of range, or a coverage
            that so few predictions cannot guarantee.
    """

    def __init__(
        self,
        probs: Array,
        labels: Array,
        coverage: float,
        *,
        method: str = 'raps',
        penalty: float = 0.01,
        free_ranks: int = 5,
        randomized: bool = True,
        seed: int = 0,
    ) -> None:
        if not 0 < check_number('coverage', coverage, most=1) < 1:
            raise ValueError(f'coverage must be a share between 0 and 1, got {coverage!r}')
        self.coverage = coverage
        self._penalty = check_number('penalty', penalty) if method == 'raps' else 0.0
        check_choice('method', method, METHODS)
        self._free = check_number('free_ranks', free_ranks)
        self._random = np.random.default_rng(seed) if randomized else None
        probs, labels, _ = read_probabilities(probs, labels)
        n = len(labels)
        place = math.ceil((n + 1) * coverage - 1e-9)
        if place > n:
            raise ValueError(
                f'{n} predictions guarantee a coverage of at most {100 * n / (n + 1):.4g} %, got '
                f'{100 * coverage:g} %: ask for less, or validate on at least '
                f'{math.ceil(coverage / (1 - coverage) - 1e-9)}'
            )
        own = self._scores(probs).gather(1, labels[:, None])[:, 0]
        self.threshold = own.sort().values[place - 1].item()

    def __call__(self, probs: Array) -> np.ndarray:
        """Return which classes are in the sets of ``(N, K)`` probabilities, ``(N, K)`` booleans.

        A randomized set may be empty, where the most probable class is.
        """
        probs = at_least_single(floats_of('probs', probs))
        check_probabilities(probs.T, 'probs')
        return (self._scores(probs) <= self.threshold).numpy()

    def _scores(self, probs: Tensor) -> Tensor:
        """Return the score of every class, ``(N, K)``."""
        probs = at_least_single(probs).double()
        ordered, order = probs.sort(dim=1, descending=True, stable=True)
        u = 1.0
        if self._random is not None:
            u = torch.from_numpy(self._random.random((len(probs), 1)))
        ranks = torch.arange(1, probs.shape[1] + 1, dtype=torch.float64)
        scores = ordered.cumsum(dim=1) - (1 - u) * ordered
        scores += self._penalty * (ranks - self._free).clamp(min=0)
        return torch.empty_like(scores).scatter_(1, order, scores)
