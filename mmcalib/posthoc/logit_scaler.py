"""What all scalings of logits share.

Each is a linear map of logits, which is why a model's last layer can absorb it. Pure torch, with
scikit-learn's habits: ``fit``, ``transform``, ``predict_proba``, and what was learned in names that
end in ``_``. All computing is in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

# Gives all logits (M, K) with their labels (M,) in parts, anew at each call, so that neither arrays
# in float64 nor the pixels of a data set are ever in memory as a whole.
Passes = Callable[[], Iterable[tuple[Tensor, Tensor]]]

_CHUNK_VALUES = 4_000_000


class LogitScaler:
    """What the scalers share; logits are ``(N, K)``, or ``(N, 1)`` before a sigmoid."""

    def fit(self, logits: Any, labels: Any) -> LogitScaler:
        """Learn the scaling from held-out logits, and return self.

        Args:
            logits: ``(N, K)`` array or tensor of raw logits, not of probabilities; ``(N, 1)`` of a
                binary classifier that ends in a sigmoid.
            labels: ``(N,)`` true classes, integers or booleans.

        Raises:
            TypeError: If labels are no integers.
            ValueError: If there is no prediction, logits are NaN or infinite, labels are out of
                range, the shapes do not fit, or the data leave the scaling undetermined.
        """
        logits, labels = check_arrays(logits, labels)
        self._fit(partial(in_chunks, logits, labels))
        self.num_predictions_ = len(labels)
        return self

    def refine(self, passes: Passes, *, max_passes: int = 10) -> LogitScaler:
        """Go on from the fit on a sample to the optimum of all data, read in passes of parts.

        Args:
            passes: Called once per pass; yields logits ``(M, K)`` and labels ``(M,)``.
            max_passes: How often at most, but for a line search that needs a few more.
        """
        self._refine(passes, max_passes)
        return self

    def transform(self, logits: Any) -> Any:
        """Return the scaled logits: of the same shape, kind and precision, but never half."""
        self._check_fitted()
        values = torch.as_tensor(logits)
        single = values.dtype in (torch.float16, torch.bfloat16, torch.float32)
        scaled = self._scale(values.double()).to(torch.float32 if single else torch.float64)
        return scaled if torch.is_tensor(logits) else scaled.numpy()

    def predict_proba(self, logits: Any) -> Any:
        """Return calibrated probabilities, ``(N, K)``; ``(N, 2)`` for logits ``(N, 1)``."""
        scaled = self.transform(logits)
        probs = as_softmax(torch.as_tensor(scaled)).softmax(dim=1)
        return probs if torch.is_tensor(logits) else probs.numpy()

    @property
    def parameters(self) -> dict:
        """What was learned, as plain numbers and lists."""
        raise NotImplementedError

    def fold(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the weight and bias of a layer whose outputs are the scaled ones of this layer.

        Args:
            weight: ``(K, …)`` of a linear layer or a convolution.
            bias: ``(K,)``, or None.

        Returns:
            Both in float64.

        Raises:
            ValueError: If there is no bias that could take up a shift.
        """
        self._check_fitted()
        flat = weight.double().flatten(1)
        shift = self._shift()
        if bias is None and shift is not None:
            raise ValueError('the layer has no bias, which has to take up the shift of the classes')
        scaled = self._scale_only(flat.T).T.reshape(weight.shape)
        if bias is None:
            return scaled, None
        scaled_bias = self._scale_only(bias.double())
        return scaled, scaled_bias if shift is None else scaled_bias + shift.to(scaled_bias.device)

    def _scale(self, logits: Tensor) -> Tensor:
        scaled, shift = self._scale_only(logits), self._shift()
        return scaled if shift is None else scaled + shift.to(scaled.device)

    def _scale_only(self, logits: Tensor) -> Tensor:
        """Scale float64 logits ``(…, K)``, without a shift."""
        raise NotImplementedError

    def _shift(self) -> Tensor | None:
        return None

    def _fit(self, passes: Passes) -> None:
        raise NotImplementedError

    def _refine(self, passes: Passes, max_passes: int) -> None:
        raise NotImplementedError

    def _check_fitted(self) -> None:
        if not hasattr(self, 'num_predictions_'):
            raise ValueError(f'{type(self).__name__} is not fitted yet: call fit first')


def as_softmax(logits: Tensor) -> Tensor:
    """Return ``(M, K)`` logits as they are, and ``(M, 1)`` ones with a 0 for the other class.

    The softmax over (0, z) is the sigmoid of z.
    """
    if logits.shape[1] > 1:
        return logits
    return torch.cat([torch.zeros_like(logits), logits], dim=1)


def check_arrays(logits: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """Return logits and int64 labels as tensors, if they can be fitted.

    Raises:
        TypeError: If labels are no integers.
        ValueError: As :meth:`LogitScaler.fit` says.
    """
    logits, labels = torch.as_tensor(logits), torch.as_tensor(labels)
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise ValueError(
            'logits must be (N, K) and labels (N,), got '
            f'{tuple(logits.shape)} and {tuple(labels.shape)}; of a binary classifier that ends in '
            'a sigmoid, logits are (N, 1)'
        )
    if logits.numel() == 0:
        raise ValueError(f'there is nothing to fit: logits have the shape {tuple(logits.shape)}')
    if labels.is_floating_point() or labels.is_complex():
        raise TypeError(f'labels must be integers, got {labels.dtype}')
    wrong = int((~logits.isfinite()).sum())
    if wrong:
        raise ValueError(
            f'{wrong} of {logits.numel()} logits are NaN or infinite: the model has diverged, or '
            'its input is broken'
        )
    labels, num_classes = labels.long(), max(logits.shape[1], 2)
    outside = labels[(labels < 0) | (labels >= num_classes)]
    if outside.numel():
        raise ValueError(
            f'{len(outside)} labels are outside [0, {num_classes}), such as '
            f'{outside.unique().tolist()[:5]}'
        )
    return logits, labels


def in_chunks(logits: Tensor, labels: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """Yield rows in parts of a few million logits."""
    rows = max(_CHUNK_VALUES // logits.shape[1], 1)
    yield from zip(logits.split(rows), labels.split(rows), strict=True)
