"""A scaling for each of several labels, of which an image can have any number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmcalib.posthoc.scaler import LogitScaler, write_scaler
from mmcalib.predictions.arrays import as_tensor
from mmcalib.tensors import at_least_single, on_float64_device

# A label that a single image has is constant for the fit of the fold that leaves this image out.
LEAST_IMAGES = 2
# A sentence lists at most this many labels, and a table or a repr this many.
MOST_NAMES = 5
MOST_LABELS = 20


class ScalerPerLabel:
    """Fitted scalings of L labels, whose logits are before a sigmoid of their own.

    Logits are ``(N, L)``, or ``(N, 1, *, L)``: the last axis is one of labels.

    Args:
        scalers: The scaler of each label, all of one method with the same options.
        shared_labels: The indices of the labels that have too few images of either value for a
            scaling of their own, or whose own would reverse the order of predictions. They take the
            one that is fitted to all labels together.
    """

    keeps_argmax = False

    def __init__(self, scalers: Iterable[LogitScaler], shared_labels: Iterable[int] = ()) -> None:
        self.scalers = list(scalers)
        self.shared_labels = list(shared_labels)
        # The method and its options, not fitted.
        self.scaler = type(self.scalers[0])(**self.scalers[0].get_params())
        self.method = self.scaler.method
        self.affine = self.scaler.affine
        self.per_class = self.scaler.per_class
        self.has_shift = self.scaler.has_shift

    def check_head(self, logits: Tensor) -> None:
        """Raise a ValueError for a method that does not take the logits of a sigmoid."""
        self.scaler.check_head(logits[:, :1])

    def transform(self, logits: Any) -> Any:
        """Return scaled logits, of the same shape and kind; lists become arrays.

        Raises:
            ValueError: If the logits are of another number of labels than the fitted ones.
        """
        values = logits if torch.is_tensor(logits) else as_tensor('logits', logits)
        if values.shape[-1:] != (len(self.scalers),):
            raise ValueError(
                f'the scaling is of {len(self.scalers)} labels, got logits of {tuple(values.shape)}'
            )
        columns = values.split(1, dim=-1)
        scaled = [s.transform(column) for s, column in zip(self.scalers, columns, strict=True)]
        joined = torch.cat(scaled, dim=-1)
        return joined if torch.is_tensor(logits) else joined.numpy()

    def predict_proba(self, logits: Any) -> Any:
        """Return calibrated probabilities, of the same shape and kind; lists become arrays."""
        values = logits if torch.is_tensor(logits) else as_tensor('logits', logits)
        probs = self.transform(on_float64_device(values).double()).sigmoid()
        if values.is_floating_point():
            probs = probs.to(at_least_single(values).dtype).to(values.device)
        return probs if torch.is_tensor(logits) else probs.numpy()

    def predict_kept(self, logits: Tensor) -> Tensor:
        """Return what :meth:`predict_proba` does; a sigmoid is not warned of for a few logits."""
        return self.predict_proba(logits)

    @staticmethod
    def probabilities(logits: Tensor) -> Tensor:
        """Return the probabilities of logits as they are."""
        return logits.sigmoid()

    def fold(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the weight and bias of a layer whose outputs are the scaled ones of this layer.

        Args:
            weight: ``(L, …)`` of a linear layer or a convolution.
            bias: ``(L,)``, or None.
        """
        biases = [None] * len(weight) if bias is None else bias.split(1)
        folded = []
        for scaler, *layer in zip(self.scalers, weight.split(1), biases, strict=True):
            folded.append(scaler.fold(*layer))
        weights, biases = zip(*folded, strict=True)
        return torch.cat(weights), None if bias is None else torch.cat(biases)

    def shown_parameters(self) -> list[dict[str, Tensor]]:
        """Return what text shows of the learned parameters of each label, by name."""
        return [scaler.shown_parameters() for scaler in self.scalers]

    def __repr__(self) -> str:
        parts = []
        for label, scaler in enumerate(self.scalers[:MOST_LABELS]):
            parts.append(f'label {label}: {scaler.parameter_text()}')
        if len(self.scalers) > MOST_LABELS:
            parts.append(f'and {len(self.scalers) - MOST_LABELS} more labels')
        return f'{type(self).__name__}({self.scaler!r}) with {"; ".join(parts)}'

    def get_params(self) -> dict[str, Any]:
        """Return the options of the method, which all labels share."""
        return self.scaler.get_params()

    @property
    def parameters(self) -> list[dict[str, Any]]:
        """Learned parameters of each label, as plain numbers and lists."""
        return [scaler.parameters for scaler in self.scalers]

    def save(self, path: str | Path, classes: Sequence[str] = ()) -> None:
        """Write it to a JSON file, see :meth:`~mmcalib.posthoc.scaler.LogitScaler.save`."""
        content = {
            'method': self.method,
            'options': self.get_params(),
            'parameters': self.parameters,
            'shared_labels': self.shared_labels,
        }
        write_scaler(path, content, classes)


# A scaling of the logits of a head, of one label or of several.
Scaler = LogitScaler | ScalerPerLabel


def label_names(labels: Sequence[int]) -> str:
    """Return ``label 3``, or ``labels 3, 5 and 2 more``, with five of them at most."""
    names = ', '.join(map(str, labels[:MOST_NAMES]))
    if len(labels) > MOST_NAMES:
        names += f' and {len(labels) - MOST_NAMES} more'
    return f'label {names}' if len(labels) == 1 else f'labels {names}'


def shared_sentence(labels: Sequence[int]) -> str:
    """Return a sentence on the labels that take the scaling of all labels together, and why."""
    has, takes, own = ('has', 'takes', 'its') if len(labels) == 1 else ('have', 'take', 'their')
    return (
        f'{label_names(labels).capitalize()} {has} fewer than {LEAST_IMAGES} images with, or '
        f'without, or so few that a scaling of {own} own would reverse the order of predictions, '
        f'and {takes} the scaling of all labels together.'
    )
