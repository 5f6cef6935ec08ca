"""A scaling for each of several labels, of which an image can have any number."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from mmcalib.posthoc.scaler import LogitScaler

# A label that is there in one image alone is not there where its fold is left out.
LEAST_IMAGES = 2
# Of labels that a sentence lists.
MOST_NAMES = 5


class ScalerPerLabel:
    """Scale each logit ``(N, L)``, before a sigmoid of its own, by what is fitted to its label.

    Args:
        scaler: What is fitted to each label, of a method for a sigmoid.

    Attributes:
        scalers: The fitted scaler of each label.
        shared_labels: The labels that have too few images of either value for a scaling of their
            own, and take the one that is fitted to all labels together.
    """

    keeps_argmax = False

    def __init__(self, scaler: LogitScaler) -> None:
        self.scaler, self.scalers = scaler, []
        self.shared_labels: list[int] = []
        self.method, self.affine, self.per_class = scaler.method, scaler.affine, scaler.per_class

    def check_head(self, logits: Tensor) -> None:
        """Raise a ValueError for a method that is not for a sigmoid."""
        self.scaler.check_head(logits[:, :1])

    def fit(self, logits: Tensor, labels: Tensor, groups: Tensor) -> ScalerPerLabel:
        """Fit to logits and labels ``(N, L)``, of which those below 0 do not count.

        Raises:
            ValueError: If the data leave a scaling undetermined.
        """
        rare = []
        for value in (0, 1):
            rare.append((labels == value).sum(dim=0) < LEAST_IMAGES)
        self.shared_labels = (rare[0] | rare[1]).nonzero().flatten().tolist()
        if self.shared_labels:
            valid = labels >= 0
            groups_of_values = groups[:, None].expand(labels.shape)[valid]
            shared = deepcopy(self.scaler)
            shared.fit(logits[valid][:, None], labels[valid], groups_of_values)
        self.scalers = []
        for number, column in enumerate(labels.T):
            if number in self.shared_labels:
                self.scalers.append(shared)
                continue
            valid = column >= 0
            rows = logits[valid, number, None], column[valid], groups[valid]
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


def shared_sentence(labels: Sequence[int]) -> str:
    """Return which labels take the scaling of all labels together, and why."""
    names = ', '.join(map(str, labels[:MOST_NAMES]))
    if len(labels) > MOST_NAMES:
        names += f' and {len(labels) - MOST_NAMES} more'
    one = len(labels) == 1
    subject = f'Label {names} has' if one else f'Labels {names} have'
    verb = 'takes' if one else 'take'
    return (
        f'{subject} fewer than {LEAST_IMAGES} images with, or without, and {verb} the scaling of '
        'all labels together.'
    )
