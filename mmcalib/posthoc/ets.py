"""A temperature, mixed with the model's own probabilities and with equal ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mmcalib.posthoc.scaler import LogitScaler, Rows, least_sum, of_given_head, with_other_class

# The share of equal probabilities stays below 1, which would leave no class ahead.
MOST_EQUAL = 0.99


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

    method = 'ets'
    learned = {'temperature': 0, 'weights': 1}
    keeps_argmax = True

    def learn(self, temperature: float, shares: Tensor) -> dict[str, Tensor]:
        of_temperature, own, equal = shares / shares.sum()
        rest = of_temperature + (1 - MOST_EQUAL) * equal
        weights = torch.stack([rest, own, MOST_EQUAL * equal])
        return {'temperature': temperature, 'weights': weights}

    def apply(self, logits: Tensor, temperature: Tensor, weights: Tensor) -> Tensor:
        logs = log_parts(logits, temperature) + weights.log().reshape(3, *[1] * logits.ndim)
        return of_given_head(logs.logsumexp(dim=0), logits)

    def _fitted(self, rows: Rows, temperature: float, weights: Tensor) -> dict[str, Tensor]:
        """Fit to the likelihoods of the labels, which are a third of the work for 21 classes."""
        logs = ((log_parts(z.double(), temperature), y) for z, y in rows.parts(rows.y))
        own = torch.cat([p.gather(2, y.expand(3, -1)[:, :, None])[:, :, 0] for p, y in logs], dim=1)

        def nll(shares: Tensor) -> Tensor:
            log_weights = self.learn(temperature, shares)['weights'].log()
            return -(own + log_weights[:, None]).logsumexp(dim=0).mean()

        # Whose logarithm has a gradient.
        return least_sum([nll], {'shares': own.new_full((3,), 1 / 3)}, {'shares': (1e-9, 1.0)})


def log_parts(logits: Tensor, temperature: Tensor | float) -> Tensor:
    """Return the three log-probabilities ``(3, N, K, *)`` that are mixed."""
    pair = with_other_class(logits)
    equal = torch.zeros_like(pair) - math.log(pair.shape[1])
    return torch.stack([(pair / temperature).log_softmax(1), pair.log_softmax(1), equal])
