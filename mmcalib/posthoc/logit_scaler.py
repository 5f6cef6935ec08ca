"""Base of all scalings of logits.

Pure torch, with scikit-learn's habits: ``fit``, ``transform``, ``predict_proba``, and what was
learned in names that end in ``_``. All computing is in float64.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmcalib.arrays import tensor_of
from mmcalib.checks import SUM_TOLERANCE, at_least_single, check_ignore_index, check_labels
from mmcalib.posthoc.scaler_file import save_scaler

# Gives all logits (M, K) with their labels (M,) in parts, anew at each call, so that neither arrays
# in float64 nor the pixels of a data set are ever in memory as a whole.
LogitReader = Callable[[], Iterable[tuple[Tensor, Tensor]]]

# So many logits of a sigmoid may lie in [0, 1] by chance.
FEW_OF_A_SIGMOID = 10

_CHUNK_VALUES = 4_000_000


class NotFittedError(ValueError, AttributeError):
    """A scaler is used before it is fitted; a ValueError and AttributeError, as in scikit-learn."""


class LogitScaler:
    """Base class of the scalers.

    Logits are ``(N, K)`` or maps ``(N, K, H, W)``; with K = 1 they are those before a sigmoid.

    A method is a class with the names of what it learns, :meth:`_fit` that learns it, and
    :meth:`_apply`, plain operations of tensors that a model runs as well.
    """

    # What is learned, without the underscore: floats or tensors.
    learned: tuple[str, ...]
    # Heads whose logits it takes: those of a softmax (K > 1), of a sigmoid (K = 1).
    heads: tuple[str, ...] = ('softmax', 'sigmoid')
    # How many predictions it takes at least.
    least_predictions = 1
    # Whether no prediction can become another class, whatever is learned.
    keeps_argmax = False
    # Whether it is an affine map of the logits, which a linear layer can absorb.
    affine = False
    # Whether each class has a scale and a shift of its own, so that a layer needs a bias to absorb
    # them, and classes that all see the same features.
    per_class = False

    def fit(
        self, logits: Any, labels: Any, groups: Any = None, *, ignore_index: int | None = None
    ) -> LogitScaler:
        """Learn the scaling from held-out logits, and return self.

        Args:
            logits: ``(N, K)`` array, tensor or list of raw logits, not of probabilities, or maps
                ``(N, K, H, W)``; K = 1 for a binary classifier that ends in a sigmoid.
            labels: ``(N,)`` or ``(N, H, W)`` true classes, integers or booleans.
            groups: ``(N,)`` numbers or names: rows of the same one, such as the pixels of an
                image, are not independent. None if every row is a group of its own; the pixels of
                a map are always of one group.
            ignore_index: Label of what to leave out, such as mmsegmentation's 255. None leaves
                nothing out.

        Warns:
            UserWarning: If the logits look like probabilities.

        Raises:
            TypeError: If labels are no integers.
            ValueError: If there are too few predictions, logits are NaN or infinite, labels are out
                of range, the shapes do not fit, the method does not take such a head, or the data
                leave the scaling undetermined.
        """
        logits, labels, groups = check_arrays(logits, labels, groups, ignore_index=ignore_index)
        self.check_head(logits)
        if len(labels) < self.least_predictions:
            raise ValueError(
                f'{type(self).__name__} requires at least {self.least_predictions} predictions, '
                f'got {len(labels)}; give more, or use a temperature'
            )
        warn_of_probabilities(logits)
        self._fit(partial(in_chunks, logits, labels), groups)
        self.num_predictions_, self.num_logits_ = len(labels), logits.shape[1]
        return self

    def transform(self, logits: Any) -> Any:
        """Return the scaled logits: of the same shape, kind and precision, but never half.

        Their softmax (for K = 1, their sigmoid) is calibrated. Lists become arrays.

        Warns:
            UserWarning: If the logits look like probabilities.
        """
        values = logits if torch.is_tensor(logits) else tensor_of('logits', logits)
        scaled = self._scaled(values).to(_result_dtype(values))
        return scaled if torch.is_tensor(logits) else scaled.numpy()

    def predict_proba(self, logits: Any) -> Any:
        """Return calibrated probabilities, shaped as the logits; two classes where K = 1."""
        values = logits if torch.is_tensor(logits) else tensor_of('logits', logits)
        # Rounded after the softmax: of large logits, single precision would lose the differences.
        probs = with_other_class(self._scaled(values)).softmax(dim=1).to(_result_dtype(values))
        return probs if torch.is_tensor(logits) else probs.numpy()

    @property
    def parameters(self) -> dict:
        """What was learned, as plain numbers and lists.

        Raises:
            NotFittedError: Before :meth:`fit`.
        """
        return {name: value.tolist() for name, value in self.tensors.items()}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What was learned, as float64 tensors.

        Raises:
            NotFittedError: Before :meth:`fit`.
        """
        self._check_fitted()
        return {
            name: torch.as_tensor(getattr(self, f'{name}_'), dtype=torch.float64)
            for name in self.learned
        }

    @property
    def options(self) -> dict:
        """What it was made with, by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def save(self, path: str | Path) -> None:
        """Write it to a JSON file, which :func:`mmcalib.posthoc.load_scaler` reads.

        Raises:
            NotFittedError: Before :meth:`fit`.
        """
        save_scaler(self, path)

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any], **options: Any) -> LogitScaler:
        """Return a fitted scaler out of its :attr:`parameters`.

        Args:
            parameters: Numbers, lists or tensors by name.
            options: As it was made with.

        Raises:
            ValueError: If the names are not those that the method learns.
        """
        if set(parameters) != set(cls.learned):
            raise ValueError(
                f'{cls.__name__} learns {", ".join(cls.learned)}, got {", ".join(parameters)}'
            )
        scaler = cls(**options)
        for name in cls.learned:
            value = torch.as_tensor(parameters[name], dtype=torch.float64)
            setattr(scaler, f'{name}_', value if value.ndim else value.item())
        scaler.num_predictions_ = 0
        return scaler

    def _apply(self, logits: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        """Return scaled logits ``(N, K, …)`` with what was learned, in the precision of both.

        It reads no state but options, so that a model can run it with tensors of its own.
        """
        raise NotImplementedError

    def _fit(self, read: LogitReader, groups: Tensor | None) -> None:
        """Set what is learned; `groups` is ``(N,)`` for all rows in the order of reading."""
        raise NotImplementedError

    def _scaled(self, logits: Tensor) -> Tensor:
        learned = {name: value.to(logits.device) for name, value in self.tensors.items()}
        if logits.ndim not in (2, 4):
            raise ValueError(
                f'logits must be (N, K), or maps (N, K, H, W), got {tuple(logits.shape)}'
            )
        self.check_head(logits)
        fitted = vars(self).get('num_logits_', logits.shape[1])
        if logits.shape[1] != fitted:
            raise ValueError(
                f'{type(self).__name__} was fitted to {fitted} logits of a prediction, got '
                f'{logits.shape[1]}: {tuple(logits.shape)}'
            )
        if not logits.numel():
            return logits.double()
        warn_of_probabilities(logits, stacklevel=4)
        return self._apply(logits.double(), learned)

    def check_head(self, logits: Tensor) -> None:
        head = 'sigmoid' if logits.shape[1] == 1 else 'softmax'
        if head not in self.heads:
            raise ValueError(
                f'{type(self).__name__} takes logits of a {" or ".join(self.heads)} head, got '
                f'{tuple(logits.shape)}, those of a {head} head'
            )

    def _check_fitted(self) -> None:
        if 'num_predictions_' not in vars(self):
            raise NotFittedError(
                f'{type(self).__name__} is not fitted yet: call fit(logits, labels) first'
            )

    def __getattr__(self, name: str) -> Any:
        # Called for what is not there, and for a property that says so.
        learned = name.endswith('_') and not name.startswith('_')
        if learned or hasattr(type(self), name):
            self._check_fitted()
        raise AttributeError(f'{type(self).__name__!r} object has no attribute {name!r}')


def with_other_class(logits: Tensor) -> Tensor:
    """Return ``(M, K, …)`` logits as they are, and ``(M, 1, …)`` ones with a 0 for the other class.

    The softmax over (0, z) is the sigmoid of z.
    """
    if logits.shape[1] > 1:
        return logits
    return torch.cat([torch.zeros_like(logits), logits], dim=1)


def without_other_class(log_probs: Tensor, num_logits: int) -> Tensor:
    """Return log-probabilities as they are, and the log-odds ``(M, 1, …)`` of a sigmoid's two."""
    return log_probs if num_logits > 1 else log_probs[:, 1:] - log_probs[:, :1]


def check_arrays(
    logits: Any, labels: Any, groups: Any = None, *, ignore_index: int | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return logits ``(M, K)``, int64 labels and groups as tensors, if they can be fitted.

    Raises:
        TypeError: If labels are no integers.
        ValueError: As :meth:`LogitScaler.fit` says.
    """
    logits, labels = tensor_of('logits', logits), tensor_of('labels', labels)
    if logits.ndim not in (2, 4) or labels.shape != logits.shape[:1] + logits.shape[2:]:
        raise ValueError(
            'logits must be (N, K) and labels (N,), or maps (N, K, H, W) and (N, H, W), got '
            f'{tuple(logits.shape)} and {tuple(labels.shape)}; of a binary classifier that ends in '
            'a sigmoid, K is 1'
        )
    if labels.is_floating_point() or labels.is_complex():
        raise TypeError(f'labels must be integers, got {labels.dtype}')
    if groups is not None:
        groups = numbers_of(groups)
        if groups.shape != logits.shape[:1]:
            raise ValueError(
                f'groups must be ({len(logits)},), one for each row or map, got '
                f'{tuple(groups.shape)}'
            )
    if logits.ndim == 4:
        groups = torch.arange(len(logits)) if groups is None else groups
        groups = groups.repeat_interleave(labels[0].numel() if len(labels) else 1)
        logits, labels = logits.movedim(1, -1).flatten(0, -2), labels.flatten()
    if ignore_index is not None:
        valid = labels != check_ignore_index(ignore_index)
        logits, labels = logits[valid.to(logits.device)], labels[valid]
        groups = None if groups is None else groups[valid.to(groups.device)]
    if logits.numel() == 0:
        raise ValueError(f'there is nothing to fit: logits have the shape {tuple(logits.shape)}')
    wrong = int((~logits.isfinite()).sum())
    if wrong:
        raise ValueError(
            f'{wrong} of {logits.numel()} logits are NaN or infinite: the model has diverged, or '
            'its input is broken'
        )
    labels = labels.long()
    hint = 'To leave out a label such as 255, set ignore_index' if ignore_index is None else ''
    check_labels(labels, max(logits.shape[1], 2), name='labels', hint=hint)
    return logits, labels, groups


def numbers_of(groups: Any) -> Tensor:
    """Return groups as integers, also if they are named, such as by patients."""
    if torch.is_tensor(groups) or np.asarray(groups).dtype.kind in 'iu':
        return torch.as_tensor(groups)
    return torch.as_tensor(np.unique(np.asarray(groups), return_inverse=True)[1])


def warn_of_probabilities(logits: Tensor, *, stacklevel: int = 3) -> None:
    """Warn if all rows lie in [0, 1] and sum to 1, as a softmax's do, or are those of a sigmoid."""
    few = len(logits) < (FEW_OF_A_SIGMOID if logits.shape[1] == 1 else 1)
    if few or not (logits.min() >= 0 and logits.max() <= 1):
        return
    total = at_least_single(logits).sum(dim=1)
    if logits.shape[1] == 1 or (total - 1).abs().max() < SUM_TOLERANCE:
        which = 'in [0, 1]' if logits.shape[1] == 1 else 'in [0, 1] and sum to 1'
        warnings.warn(
            f'the logits look like probabilities: all rows lie {which}. Give raw logits, or the '
            'logarithm of the probabilities (for K = 1, their log-odds)',
            stacklevel=stacklevel,
        )


def in_chunks(logits: Tensor, labels: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """Yield rows in parts of a few million logits."""
    rows = max(_CHUNK_VALUES // logits.shape[1], 1)
    yield from zip(logits.split(rows), labels.split(rows), strict=True)


def _result_dtype(logits: Tensor) -> torch.dtype:
    return at_least_single(logits).dtype if logits.is_floating_point() else torch.float64
