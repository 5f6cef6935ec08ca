"""What all scalings of logits share.

Each is an affine map of logits, which is why a model's last layer can absorb it. Pure torch, with
scikit-learn's habits: ``fit``, ``transform``, ``predict_proba``, and what was learned in names that
end in ``_``. All computing is in float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmcalib.checks import at_least_single, check_integer, check_labels

# Gives all logits (M, K) with their labels (M,) in parts, anew at each call, so that neither arrays
# in float64 nor the pixels of a data set are ever in memory as a whole.
LogitReader = Callable[[], Iterable[tuple[Tensor, Tensor]]]

# How far a half-precision softmax may sum from 1.
PROBABILITY_TOLERANCE = 1e-2

_CHUNK_VALUES = 4_000_000


class NotFittedError(ValueError, AttributeError):
    """What was not learned yet is asked for; of both kinds, as scikit-learn's is."""


class LogitMap(NamedTuple):
    """What a fitted scaler does to logits.

    Attributes:
        factor: ``()`` for all classes, ``(K,)`` per class, or a ``(K, K)`` matrix.
        shift: ``(K,)`` to add, None for nothing.
    """

    factor: Tensor
    shift: Tensor | None


class LogitScaler:
    """What the scalers share; logits are ``(N, K)``, or ``(N, 1)`` before a sigmoid."""

    # Whether each class has a scale and a shift of its own, so that a layer needs a bias to absorb
    # them, and classes that all see the same features.
    per_class: bool

    def fit(self, logits: Any, labels: Any) -> LogitScaler:
        """Learn the scaling from held-out logits, and return self.

        Args:
            logits: ``(N, K)`` array or tensor of raw logits, not of probabilities; ``(N, 1)`` of a
                binary classifier that ends in a sigmoid.
            labels: ``(N,)`` true classes, integers or booleans.

        Warns:
            UserWarning: If the logits look like probabilities.

        Raises:
            TypeError: If labels are no integers.
            ValueError: If there is no prediction, logits are NaN or infinite, labels are out of
                range, the shapes do not fit, or the data leave the scaling undetermined.
        """
        logits, labels = check_arrays(logits, labels)
        warn_of_probabilities(logits)
        self._fit(partial(in_chunks, logits, labels))
        self.num_predictions_ = len(labels)
        return self

    def refine(self, read: LogitReader, *, max_passes: int = 10) -> LogitScaler:
        """Go on from the fit on a sample to the optimum of all data, read in passes of parts.

        Args:
            read: Called once per pass; yields logits ``(M, K)`` and labels ``(M,)``.
            max_passes: How often at most, but for a line search that needs a few more.

        Raises:
            NotFittedError: Before :meth:`fit`.
            ValueError: If there is no prediction.
        """
        self._check_fitted()
        check_integer('max_passes', max_passes)
        count = 0

        def counted() -> Iterable[tuple[Tensor, Tensor]]:
            nonlocal count
            count = 0
            for logits, labels in read():
                count += len(labels)
                yield logits, labels
            if not count:
                raise ValueError('there is nothing to fit: no prediction was read')

        self._refine(counted, max_passes)
        self.num_predictions_ = count
        return self

    def transform(self, logits: Any) -> Any:
        """Return the scaled logits: of the same shape, kind and precision, but never half."""
        values = torch.as_tensor(logits)
        scaled = self._scaled(values).to(_result_dtype(values))
        return scaled if torch.is_tensor(logits) else scaled.numpy()

    def predict_proba(self, logits: Any) -> Any:
        """Return calibrated probabilities, ``(N, K)``; ``(N, 2)`` for logits ``(N, 1)``."""
        values = torch.as_tensor(logits)
        # Rounded after the softmax: of large logits, single precision would lose the differences.
        probs = with_other_class(self._scaled(values)).softmax(dim=1).to(_result_dtype(values))
        return probs if torch.is_tensor(logits) else probs.numpy()

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
        self._check_fitted()
        factor, shift = self._map()
        if bias is None and shift is not None:
            raise ValueError('the layer has no bias, which has to take up the shift of the classes')
        # The classes of a weight come first, those of logits last.
        scaled = multiply(weight.double().flatten(1).T, factor).T.reshape(weight.shape)
        if bias is None:
            return scaled, None
        return scaled, add_shift(multiply(bias.double(), factor), shift)

    @property
    def parameters(self) -> dict:
        """What was learned, as plain numbers and lists.

        Raises:
            NotFittedError: Before :meth:`fit`.
        """
        self._check_fitted()
        return self._parameters()

    def __getattr__(self, name: str) -> Any:
        # Called for what is not there, and for a property that says so.
        learned = name.endswith('_') and not name.startswith('_')
        if learned or hasattr(type(self), name):
            self._check_fitted()
        raise AttributeError(f'{type(self).__name__!r} object has no attribute {name!r}')

    def _scaled(self, logits: Tensor) -> Tensor:
        self._check_fitted()
        factor, shift = self._map()
        return add_shift(multiply(logits.double(), factor), shift)

    def _check_fitted(self) -> None:
        if 'num_predictions_' not in vars(self):
            raise NotFittedError(
                f'{type(self).__name__} is not fitted yet: call fit(logits, labels) first'
            )

    def _map(self) -> LogitMap:
        raise NotImplementedError

    def _parameters(self) -> dict:
        raise NotImplementedError

    def _fit(self, read: LogitReader) -> None:
        raise NotImplementedError

    def _refine(self, read: LogitReader, max_passes: int) -> None:
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


def with_other_class(logits: Tensor) -> Tensor:
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
    logits, labels = torch.as_tensor(logits).detach(), torch.as_tensor(labels)
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
    labels = labels.long()
    check_labels(labels, max(logits.shape[1], 2), name='labels')
    return logits, labels


def warn_of_probabilities(logits: Tensor) -> None:
    """Warn if all rows lie in [0, 1] and sum to 1, as those of a softmax do."""
    if logits.shape[1] > 1 and logits.min() >= 0 and logits.max() <= 1:
        total = at_least_single(logits).sum(dim=1)
        if (total - 1).abs().max() < PROBABILITY_TOLERANCE:
            warnings.warn(
                'the logits look like probabilities: all rows lie in [0, 1] and sum to 1. Give raw '
                'logits, or the logarithm of the probabilities',
                stacklevel=3,
            )


def in_chunks(logits: Tensor, labels: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """Yield rows in parts of a few million logits."""
    rows = max(_CHUNK_VALUES // logits.shape[1], 1)
    yield from zip(logits.split(rows), labels.split(rows), strict=True)


def _result_dtype(logits: Tensor) -> torch.dtype:
    return at_least_single(logits).dtype if logits.is_floating_point() else torch.float64
