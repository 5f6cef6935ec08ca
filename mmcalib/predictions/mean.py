"""The mean of several predictions' probabilities, and their disagreement."""

from __future__ import annotations

import torch
from torch import Tensor


class PredictionMean:
    r"""Takes in the probabilities of one image prediction by prediction, and keeps only sums.

    .. math::

        \bar p = \frac1N \sum_i p_i, \quad I = H(\bar p) - \frac1N \sum_i H(p_i)

    The mutual information I, in nats, is 0 where all predictions are alike and :math:`\log N` where
    each is sure of another class. Source: Houlsby et al., Bayesian Active Learning, 2011.

    Args:
        disagreement: Whether I and the predicted classes are wanted.
        threshold: Above which probability a binary head predicts its class.

    Attributes:
        count: N.
        mean: ``(K, …)``, or ``(1, …)`` of a binary head's probability of class 1.
    """

    def __init__(self, *, disagreement: bool = False, threshold: float = 0.5) -> None:
        self.count = 0
        self.mean: Tensor | None = None
        self._disagreement = disagreement
        self._threshold = threshold
        self._predictions: list[Tensor] = []
        self._entropies: Tensor | float = 0.0

    def add(self, probs: Tensor) -> None:
        """Take in a prediction.

        Raises:
            ValueError: If it has another shape than the first.
        """
        self.count += 1
        if self.mean is None:
            self.mean = torch.zeros_like(probs)
        elif probs.shape != self.mean.shape:
            raise ValueError(
                f'got probabilities of shape {tuple(probs.shape)}, earlier ones have '
                f'{tuple(self.mean.shape)}'
            )
        # So the mean of equal values is that value, and no difference of large sums is taken.
        self.mean.add_(probs - self.mean, alpha=1 / self.count)
        if self._disagreement:
            self._entropies = self._entropies + _entropy(probs)
            several = len(probs) > 1  # of whose heads the threshold is None
            single = probs.argmax(dim=0) if several else probs[0] > self._threshold
            self._predictions.append(single.short())

    @property
    def mutual_information(self) -> Tensor:
        """I, of the shape of a class's probabilities."""
        return (_entropy(self.mean) - self._entropies / self.count).clamp(min=0)

    @property
    def predictions(self) -> Tensor:
        """The class that each prediction gives, ``(N, …)`` int16."""
        return torch.stack(self._predictions)


def _entropy(probs: Tensor) -> Tensor:
    entropy = torch.special.entr(probs).sum(dim=0)
    return entropy if len(probs) > 1 else entropy + torch.special.entr(1 - probs).sum(dim=0)
