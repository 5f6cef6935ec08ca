"""The mean of several predictions' probabilities, and their disagreement."""

from __future__ import annotations

import torch
from torch import Tensor


class PredictionMean:
    r"""A mean of the probabilities of one image, to which predictions are added one by one.

    It keeps sums, and not the predictions.

    .. math::

        \bar p = \frac1N \sum_i p_i, \quad I = H(\bar p) - \frac1N \sum_i H(p_i)

    The mutual information I, in nats, is 0 where all predictions are alike and :math:`\log N` where
    each is sure of another class.

    Source: Houlsby et al., Bayesian Active Learning, 2011.

    Args:
        disagreement: Whether I and the predicted classes are required.
        threshold: The probability above which a binary head predicts its class. A softmax head has
            none.

    Attributes:
        count: N.
        mean: ``(K, …)`` mean probabilities; for a binary head ``(1, …)``, those of class 1. None
            before the first prediction.
    """

    def __init__(self, *, disagreement: bool = False, threshold: float = 0.5) -> None:
        self.count = 0
        self.mean: Tensor | None = None
        self._disagreement = disagreement
        self._threshold = threshold
        self._predictions: list[Tensor] = []
        self._entropies: Tensor | float = 0.0

    def add(self, probs: Tensor) -> None:
        """Take in the probabilities ``(K, …)`` of a prediction.

        Raises:
            ValueError: If they have another shape than the first.
        """
        self.count += 1
        if self.mean is None:
            self.mean = torch.zeros_like(probs)
        elif probs.shape != self.mean.shape:
            raise ValueError(
                f'got probabilities of shape {tuple(probs.shape)}, earlier ones have '
                f'{tuple(self.mean.shape)}'
            )
        # This way the mean of equal values is exactly that value.
        self.mean.add_(probs - self.mean, alpha=1 / self.count)
        if self._disagreement:
            self._entropies = self._entropies + _entropy(probs)
            predicted = probs.argmax(dim=0) if len(probs) > 1 else probs[0] > self._threshold
            self._predictions.append(predicted.short())

    @property
    def mutual_information(self) -> Tensor:
        """The mutual information I, ``(…)``."""
        return (_entropy(self.mean) - self._entropies / self.count).clamp(min=0)

    @property
    def predictions(self) -> Tensor:
        """The predicted class of each prediction, ``(N, …)`` int16."""
        return torch.stack(self._predictions)


def _entropy(probs: Tensor) -> Tensor:
    entropy = torch.special.entr(probs).sum(dim=0)
    if len(probs) > 1:
        return entropy
    return entropy + torch.special.entr(1 - probs).sum(dim=0)
