"""Scalings that are affine maps of the logits, which a model's last layer can absorb."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from mmcalib.posthoc.logit_scaler import LogitScaler


class LogitMap(NamedTuple):
    """What a fitted scaler does to logits.

    Attributes:
        factor: ``()`` for all classes, ``(K,)`` per class, or a ``(K, K)`` matrix.
        shift: ``(K,)`` to add, None for nothing.
    """

    factor: Tensor
    shift: Tensor | None


class AffineScaler(LogitScaler):
    """A scaling that is a factor and a shift, and folds into a linear layer."""

    affine = True

    def fold(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the weight and bias of a layer whose outputs are the scaled ones of this layer.

        Args:
            weight: ``(K, …)`` of a linear layer or a convolution.
            bias: ``(K,)``, or None.

        Returns:
            Both in float64.

        Raises:
            NotFittedError: Before :meth:`fit`.
            ValueError: If there is no bias that could take up a shift.
        """
        factor, shift = self._map(self.tensors)
        if bias is None and shift is not None:
            raise ValueError('the layer has no bias to absorb the shift of the classes')
        # The classes of a weight come first, those of logits last.
        scaled = multiply(weight.double().flatten(1).T, factor).T.reshape(weight.shape)
        if bias is None:
            return scaled, None
        return scaled, add_shift(multiply(bias.double(), factor), shift)

    def _apply(self, logits: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        factor, shift = self._map(learned)
        if factor.ndim == 0 and shift is None:
            return logits * factor
        # Which undoes itself; ONNX gets movedim(-1, 1) of maps of any size wrong.
        rows = logits.transpose(1, -1)
        return add_shift(multiply(rows, factor), shift).transpose(1, -1)

    def _map(self, learned: Mapping[str, Tensor]) -> LogitMap:
        raise NotImplementedError


def multiply(logits: Tensor, factor: Tensor) -> Tensor:
    """Return float64 logits ``(…, K)`` times a :class:`LogitMap`'s factor.

    A factor per class takes :func:`centred` logits, one for all is of no need of that.
    """
    factor = factor.to(logits.device)
    if factor.ndim == 0:
        return logits * factor
    logits = centred(logits)
    return logits * factor if factor.ndim == 1 else logits @ factor.T


def centred(logits: Tensor) -> Tensor:
    """Return logits ``(…, K)`` less their mean over the classes.

    A softmax ignores what is added to all logits alike, so a scaling must not depend on it: scales
    per class would make differences between classes of it. A sigmoid's single logit is returned as
    it is, since its distance from 0 is all it says.
    """
    return logits if logits.shape[-1] == 1 else logits - logits.mean(dim=-1, keepdim=True)


def add_shift(logits: Tensor, shift: Tensor | None) -> Tensor:
    """Return logits ``(…, K)`` and a shift per class, if there is one."""
    return logits if shift is None else logits + shift.to(logits.device)
