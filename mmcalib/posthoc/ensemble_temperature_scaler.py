"""A temperature, mixed with the model's own probabilities and with equal ones."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from mmcalib.posthoc.logit_scaler import (
    LogitReader,
    LogitScaler,
    with_other_class,
    without_other_class,
)
from mmcalib.posthoc.temperature_scaler import TemperatureScaler

# The share of equal probabilities stays below 1, which would leave no class ahead.
_MOST_EQUAL = 0.99


class EnsembleTemperatureScaler(LogitScaler):
    r"""Mix the probabilities with a temperature, those without one, and uniform ones.

    .. math:: p = w_1\,\mathrm{softmax}(z / T) + w_2\,\mathrm{softmax}(z) + w_3 / K

    T is that of the least NLL, then the weights are, which are not negative and sum to 1; the NLL
    is convex in them. No argmax changes. Scaled logits are log-probabilities, those of a sigmoid
    log-odds.

    Source: Ensemble temperature scaling (ETS) of Zhang, Kailkhura and Han, Mix-n-Match, 2020, with
    the NLL as the loss. Here :math:`w_3 \le 0.99`.

    Attributes:
        temperature_: T.
        weights_: ``(3,)``, of the temperature, of the model's own and of equal probabilities.
    """

    learned = ('temperature', 'weights')
    keeps_argmax = True
    least_predictions = 3

    def _fit(self, read: LogitReader, groups: Tensor | None) -> None:
        from scipy.optimize import minimize  # takes a second to import, and few need it

        single = TemperatureScaler()
        single._fit(read, None)
        parts = []
        for logits, labels in read():
            z = with_other_class(logits.double())
            own = [
                scaled.log_softmax(dim=1).gather(1, labels.to(z.device)[:, None])
                for scaled in (z / single.temperature_, z)
            ]
            parts.append(torch.cat([*own, torch.full_like(own[0], -math.log(z.shape[1]))], 1).cpu())
        # The likelihood of the label, over the largest of the three so that none is rounded to 0.
        own = torch.cat(parts)
        likelihoods = (own - own.amax(dim=1, keepdim=True)).exp().numpy()

        def objective(weights: np.ndarray) -> tuple[float, np.ndarray]:
            mixed = np.maximum(likelihoods @ weights, np.finfo(float).tiny)
            return -np.log(mixed).mean(), -(likelihoods / mixed[:, None]).mean(axis=0)

        result = minimize(
            objective,
            np.full(3, 1 / 3),
            jac=True,
            method='SLSQP',
            bounds=[(0, 1), (0, 1), (0, _MOST_EQUAL)],
            constraints=dict(type='eq', fun=lambda w: w.sum() - 1, jac=np.ones_like),
            options=dict(maxiter=200, ftol=1e-12),
        )
        weights = torch.from_numpy(result.x).clamp(min=0)
        self.temperature_, self.weights_ = single.temperature_, weights / weights.sum()

    def _apply(self, logits: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        z, log_weights = with_other_class(logits), learned['weights'].log()
        parts = [
            (z / learned['temperature']).log_softmax(dim=1) + log_weights[0],
            z.log_softmax(dim=1) + log_weights[1],
            torch.zeros_like(z) - math.log(z.shape[1]) + log_weights[2],
        ]
        return without_other_class(torch.stack(parts).logsumexp(dim=0), logits.shape[1])
