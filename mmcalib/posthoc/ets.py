"""A temperature, mixed with the model's own probabilities and with uniform ones."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from mmcalib.posthoc.fit_rows import split_rows
from mmcalib.posthoc.logits import with_other_class, without_other_class
from mmcalib.posthoc.minimize import minimize_sum
from mmcalib.posthoc.scaler import LogitScaler
from mmcalib.predictions.image_predictions import ImagePredictions

# The weight of uniform probabilities stays below 1, at which no class would be the highest.
MOST_UNIFORM = 0.99


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
        weights_: ``(3,)`` weights of the probabilities with the temperature, of those without one,
            and of uniform ones.
    """

    method = 'ets'
    learned = {'temperature': 0, 'weights': 1}
    keeps_argmax = True

    def start(self, num_logits: int) -> dict[str, Tensor]:
        return {'shares': torch.full((3,), 1 / 3, dtype=torch.float64, device='cpu')}

    def learned_parameters(self, temperature: float, shares: Tensor) -> dict[str, Tensor]:
        scaled_share, unscaled_share, uniform_share = shares / shares.sum()
        scaled_weight = scaled_share + (1 - MOST_UNIFORM) * uniform_share
        weights = torch.stack([scaled_weight, unscaled_share, MOST_UNIFORM * uniform_share])
        return {'temperature': temperature, 'weights': weights}

    def shown_parameters(self) -> dict[str, Tensor]:
        """Return the temperature and the weights, of which the least are 0 but for rounding."""
        return {**self.tensors, 'weights': self.weights_.round(decimals=4)}

    def apply(self, logits: Tensor, temperature: Tensor, weights: Tensor) -> Tensor:
        other_axes = [1] * logits.ndim
        log_weights = weights.log().reshape(3, *other_axes)
        mixed = (mixed_log_probs(logits, temperature) + log_weights).logsumexp(dim=0)
        return without_other_class(mixed, num_logits=logits.shape[1])

    def _minimize_nll(
        self,
        rows: ImagePredictions,
        temperature: float,
        weights: Tensor,
        start: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """Return the shares with the least NLL.

        It needs the probabilities of the labels alone, which is a third of the work for 21 classes.
        """
        label_log_probs = []
        for logits, labels in split_rows(rows.logits, rows.labels):
            index = labels.expand(3, -1)[:, :, None]
            log_probs = mixed_log_probs(logits.double(), temperature)
            label_log_probs.append(log_probs.gather(2, index)[:, :, 0])
        label_log_probs = torch.cat(label_log_probs, dim=1)

        def mean_nll(shares: Tensor) -> Tensor:
            log_weights = self.learned_parameters(temperature, shares)['weights'].log()
            return -(label_log_probs + log_weights[:, None]).logsumexp(dim=0).mean()

        shares = start['shares'].to(label_log_probs)
        # At 0 the logarithm of a share would have no gradient.
        return minimize_sum([mean_nll], {'shares': shares}, bounds={'shares': (1e-9, 1.0)})


def mixed_log_probs(logits: Tensor, temperature: Tensor | float) -> Tensor:
    """Return the three log-probabilities ``(3, N, K, *)`` that are mixed."""
    logits = with_other_class(logits)
    scaled = (logits / temperature).log_softmax(dim=1)
    unscaled = logits.log_softmax(dim=1)
    uniform = torch.zeros_like(logits) - math.log(logits.shape[1])
    return torch.stack([scaled, unscaled, uniform])
