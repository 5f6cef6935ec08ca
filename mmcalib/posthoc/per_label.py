"""A scaling for each of several labels, of which an image can have any number."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from mmcalib.checks import UserError
from mmcalib.posthoc.scaler import LogitScaler


class ScalerPerLabel:
    """Scale each logit ``(N, L)``, before a sigmoid of its own, by what is fitted to its label.

    Args:
        scaler: What is fitted to each label, of a method for a sigmoid.

    Attributes:
        scalers: Of the labels, fitted.
    """

    keeps_argmax = False

    def __init__(self, scaler: LogitScaler) -> None:
        self.scaler, self.scalers = scaler, []
        self.method, self.affine, self.per_class = scaler.method, scaler.affine, scaler.per_class

    def check_head(self, logits: Tensor) -> None:
        """Raise a ValueError for a method that is not for a sigmoid."""
        self.scaler.check_head(logits[:, :1])

    def fit(self, logits: Tensor, labels: Tensor, groups: Tensor) -> ScalerPerLabel:
        """Fit to logits and labels ``(N, L)``, of which those below 0 do not count.

        Raises:
            ValueError: If a label has one value only.
        """
        for number, own in enumerate(labels.T):
            valid = own >= 0
            if not (own[valid] == 0).any() or not (own[valid] == 1).any():
                raise UserError(
                    f'label {number} is {int(own.amax() == 1)} in all {int(valid.sum())} images: '
                    'leave it out, or calibrate on more'
                )
            rows = logits[valid, number, None], own[valid], groups[valid]
            self.scalers.append(deepcopy(self.scaler).fit(*rows))
        return self

    def transform(self, logits: Tensor) -> Tensor:
        """Return scaled logits ``(N, L)``."""
        columns = zip(self.scalers, logits.split(1, dim=1), strict=True)
        return torch.cat([scaler.transform(values) for scaler, values in columns], dim=1)

    def predict_proba(self, logits: Tensor) -> Tensor:
        """Return calibrated probabilities ``(N, L)``."""
        return self.transform(logits.double()).sigmoid()

    @staticmethod
    def probabilities(logits: Tensor) -> Tensor:
        """Return the probabilities of logits as they are."""
        return logits.sigmoid()

    def fold(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the weight and the bias of a layer whose outputs are the scaled ones."""
        biases: Any = [None] * len(weight) if bias is None else bias.split(1)
        rows = zip(self.scalers, weight.split(1), biases, strict=True)
        weights, biases = zip(*(scaler.fold(*row) for scaler, *row in rows), strict=True)
        return torch.cat(weights), None if bias is None else torch.cat(biases)
