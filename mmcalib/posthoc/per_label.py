"""A scaling for each of several labels, of which an image can have any number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
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
    """A scaling for each of L labels, whose logits are before a sigmoid of their own.

    Logits are ``(N, L)``, or ``(N, 1, *, L)``: the last axis is one of labels.

    Args:
        scaler: A scaler with the method and the options for each label; the method must take the
            logits of a sigmoid.

    Attributes:
        scalers: The fitted scaler of each label; empty before :meth:`fit`.
        shared_labels: The indices of the labels that have too few images of either value for a
            scaling of their own. They take the one that is fitted to all labels together.
    """

    keeps_argmax = False

    def __init__(self, scaler: LogitScaler) -> None:
        self.scaler = scaler
        self.method = scaler.method
        self.affine = scaler.affine
        self.per_class = scaler.per_class
        self.has_shift = scaler.has_shift
        self.takes_masked_classes = scaler.takes_masked_classes
        self.scalers: list[LogitScaler] = []
        self.shared_labels: list[int] = []

    def check_head(self, logits: Tensor) -> None:
        """Raise a ValueError for a method that does not take the logits of a sigmoid."""
        self.scaler.check_head(logits[:, :1])

    def fit(self, logits: Tensor, labels: Tensor, groups: Tensor) -> ScalerPerLabel:
        """Fit a scaling to each label, and return self.

        Args:
            logits: ``(N, L)``.
            labels: ``(N, L)`` of 0 and 1; labels below 0 are not valid.
            groups: ``(N,)`` integers, see :meth:`LogitScaler.fit`.

        Raises:
            ValueError: If the data leave a scaling undetermined.
        """
        images_with = (labels == 1).sum(dim=0)
        images_without = (labels == 0).sum(dim=0)
        is_rare = (images_with < LEAST_IMAGES) | (images_without < LEAST_IMAGES)
        self.shared_labels = is_rare.nonzero().flatten().tolist()
        if self.shared_labels:
            shared_scaler = self._fit_all_labels_together(logits, labels, groups)
        self.scalers = []
        for index in range(labels.shape[1]):
            if index in self.shared_labels:
                self.scalers.append(shared_scaler)
                continue
            valid = labels[:, index] >= 0
            label_scaler = deepcopy(self.scaler)
            label_scaler.fit(logits[valid, index, None], labels[valid, index], groups[valid])
            self.scalers.append(label_scaler)
        return self

    def _fit_all_labels_together(
        self, logits: Tensor, labels: Tensor, groups: Tensor
    ) -> LogitScaler:
        valid = labels >= 0
        group_of_each_label = groups[:, None].expand(labels.shape)
        scaler = deepcopy(self.scaler)
        return scaler.fit(logits[valid][:, None], labels[valid], group_of_each_label[valid])

    def standard_errors(self, logits: Tensor, labels: Tensor, groups: Tensor) -> list[float]:
        """Return the standard error of the temperature of each label.

        It is NaN for a label that takes the scaling of all labels together, and for a temperature
        at its bound.

        Args:
            logits: As for :meth:`fit`.
            labels: As for :meth:`fit`.
            groups: As for :meth:`fit`.
        """
        errors = []
        for index, scaler in enumerate(self.scalers):
            if index in self.shared_labels:
                errors.append(math.nan)
                continue
            valid = labels[:, index] >= 0
            errors.append(
                scaler.standard_error(
                    logits[valid, index, None], labels[valid, index], groups[valid]
                )
            )
        return errors

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
        folded_weights = []
        folded_biases = []
        for index, scaler in enumerate(self.scalers):
            label = slice(index, index + 1)
            label_bias = None if bias is None else bias[label]
            folded_weight, folded_bias = scaler.fold(weight[label], label_bias)
            folded_weights.append(folded_weight)
            folded_biases.append(folded_bias)
        if bias is None:
            return torch.cat(folded_weights), None
        return torch.cat(folded_weights), torch.cat(folded_biases)

    def shown_parameters(self) -> list[dict[str, Tensor]]:
        """Return what text shows of the learned parameters of each label, by name."""
        return [scaler.shown_parameters() for scaler in self.scalers]

    def __repr__(self) -> str:
        text = f'{type(self).__name__}({self.scaler!r})'
        if not self.scalers:
            return text
        parts = []
        for label, scaler in enumerate(self.scalers[:MOST_LABELS]):
            parts.append(f'label {label}: {scaler.parameter_text()}')
        if len(self.scalers) > MOST_LABELS:
            parts.append(f'and {len(self.scalers) - MOST_LABELS} more labels')
        return f'{text} with {"; ".join(parts)}'

    def get_params(self) -> dict[str, Any]:
        """Return the options of the method, which all labels share."""
        return self.scaler.get_params()

    @property
    def parameters(self) -> list[dict[str, Any]]:
        """Learned parameters of each label, as plain numbers and lists."""
        return [scaler.parameters for scaler in self.scalers]

    @classmethod
    def from_parameters(
        cls,
        scaler: LogitScaler,
        parameters: Sequence[Mapping[str, Any]],
        *,
        shared_labels: Sequence[int] = (),
    ) -> ScalerPerLabel:
        """Return a fitted scaler out of its :attr:`parameters`.

        Args:
            scaler: A scaler with the method and the options.
            parameters: The learned parameters of each label.
            shared_labels: The indices of the labels that take the scaling of all labels together.

        Raises:
            ValueError: If they are not what the method learns.
        """
        fitted = cls(scaler)
        for label_parameters in parameters:
            label_scaler = scaler.from_parameters(label_parameters, **scaler.get_params())
            label_scaler.num_logits_ = 1
            fitted.scalers.append(label_scaler)
        fitted.shared_labels = list(shared_labels)
        return fitted

    def save(self, path: str | Path) -> None:
        """Write it to a JSON file, which :func:`mmcalib.posthoc.load_scaler` reads."""
        content = {
            'method': self.method,
            'options': self.get_params(),
            'parameters': self.parameters,
            'shared_labels': self.shared_labels,
        }
        write_scaler(path, content)


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
    subject = label_names(labels).capitalize()
    if len(labels) == 1:
        return (
            f'{subject} has fewer than {LEAST_IMAGES} images with, or without, and takes the '
            'scaling of all labels together.'
        )
    return (
        f'{subject} have fewer than {LEAST_IMAGES} images with, or without, and take the '
        'scaling of all labels together.'
    )
