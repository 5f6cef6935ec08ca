"""Scalings of logits, fitted on held-out data: one temperature, one scale per class, a matrix.

Each is a linear map of logits, which is why a model's last layer can absorb it. Pure torch, with
scikit-learn's habits: ``fit``, ``transform``, ``predict_proba``, and what was learned in names that
end in ``_``. All computing is in float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmcalib.metrics.bins import equal_width_bins
from mmcalib.metrics.errors import binned_calibration_error

# Gives all logits (M, K) with their labels (M,) in parts, anew at each call, so that neither arrays
# in float64 nor the pixels of a data set are ever in memory as a whole.
Passes = Callable[[], Iterable[tuple[Tensor, Tensor]]]

# No network needs a temperature beyond these; separable logits would drive it to 0.
BOUNDS = (0.01, 100.0)
CRITERIA = ('nll', 'ece-grid')
# The paper's grid.
GRID = tuple(k / 10 for k in range(1, 101))
GRID_BINS = 15

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
        self._fit(partial(_in_chunks, logits, labels))
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


class TemperatureScaler(LogitScaler):
    r"""Divide all logits by one temperature T, which changes no argmax.

    By default T minimises the negative log-likelihood, which is convex in 1/T; the minimum is found
    by safeguarded Newton steps. With ``criterion='ece-grid'`` T is the first of 0.1, 0.2, … 10.0
    with the lowest ECE over 15 bins, as the paper chose it (Table "pre- and post-temperature
    scaling" of its appendix).

    Source: Guo et al., On Calibration of Modern Neural Networks, 2017.

    Args:
        criterion: ``'nll'`` or ``'ece-grid'``.

    Attributes:
        temperature_: T, within [0.01, 100].
        at_bound_: Whether the minimum lies beyond these bounds, as for separable logits.

    Raises:
        ValueError: If the criterion is unknown.
    """

    def __init__(self, *, criterion: str = 'nll') -> None:
        if criterion not in CRITERIA:
            raise ValueError(f'criterion must be one of {CRITERIA}, got {criterion!r}')
        self.criterion = criterion

    @property
    def parameters(self) -> dict:
        return {'temperature': self.temperature_}

    def standard_error(self, logits: Any, labels: Any, groups: Any = None) -> float:
        """Return the standard error of the temperature that minimises the NLL of these logits.

        It is the robust (sandwich) one, which supposes no model to be true.

        Args:
            logits: As for :meth:`fit`.
            labels: As for :meth:`fit`.
            groups: ``(N,)`` integers: rows of the same number, such as the pixels of an image,
                count as one independent observation. None if every row is one.

        Returns:
            NaN for a temperature at its bound, or with fewer than two groups.
        """
        logits, labels = check_arrays(logits, labels)
        beta, curvature, slopes = 1 / self.temperature_, 0.0, []
        for z, y in _in_chunks(logits, labels):
            slope, curve = _slope_and_curvature(z, y, beta)
            slopes.append(slope)
            curvature += curve.sum().item()
        slopes = torch.cat(slopes)
        if groups is not None:
            index = torch.as_tensor(groups).unique(return_inverse=True)[1]
            total = slopes.new_zeros(int(index.max()) + 1)
            slopes = total.index_add_(0, index.to(slopes.device), slopes)
        if self.at_bound_ or len(slopes) < 2 or curvature == 0:
            return float('nan')
        return (slopes.square().sum().sqrt() / curvature * self.temperature_**2).item()

    def _scale_only(self, logits: Tensor) -> Tensor:
        return logits / self.temperature_

    def _fit(self, passes: Passes) -> None:
        if self.criterion == 'ece-grid':
            self._choose_from_grid(passes)
            return
        # In 1/T: the slope of the NLL is negative below the minimum and positive above.
        betas = torch.logspace(-2, 2, 9, dtype=torch.float64).tolist()
        slopes = [self._mean_slope(passes, beta) for beta in betas]
        if slopes[0] == (0, 0):
            raise ValueError('the logits of each row are all equal: no temperature changes them')
        above = next((i for i, (slope, _) in enumerate(slopes) if slope >= 0), None)
        if above in (0, None):
            self._set(betas[0] if above == 0 else betas[-1], at_bound=True)
        else:
            low, high = betas[above - 1], betas[above]
            self._newton(passes, (low * high) ** 0.5, low, high, 1e-10, 100)

    def _refine(self, passes: Passes, max_passes: int) -> None:
        if self.criterion == 'ece-grid':
            self._choose_from_grid(passes)
        else:
            low, high = 1 / BOUNDS[1], 1 / BOUNDS[0]
            self._newton(passes, 1 / self.temperature_, low, high, 1e-5, max_passes)

    def _newton(
        self,
        passes: Passes,
        beta: float,
        low: float,
        high: float,
        tolerance: float,
        max_passes: int,
    ) -> None:
        bounds = (1 / BOUNDS[1], 1 / BOUNDS[0])
        for _ in range(max_passes):
            slope, curvature = self._mean_slope(passes, beta)
            low, high = (beta, high) if slope < 0 else (low, beta)
            step = beta - slope / curvature if curvature > 0 else high if slope < 0 else low
            # A step may not leave the bracket, nor go far where the curvature vanishes.
            new = min(max(step, low, beta / 4), high, 4 * beta)
            if new != step and new in (low, high) and new not in bounds:
                new = (low * high) ** 0.5
            change, beta = abs(new / beta - 1), new
            if change < tolerance:
                break
        self._set(beta, at_bound=beta in bounds)

    def _set(self, beta: float, *, at_bound: bool) -> None:
        self.temperature_, self.at_bound_ = 1 / beta, at_bound
        if at_bound:
            why = (
                'the labels are predicted without an error, so the split cannot tell how sure is '
                'sure enough'
                if beta > 1
                else 'the logits say next to nothing about the labels'
            )
            warnings.warn(
                f'the temperature ran to its bound of {self.temperature_:.4g}: {why}', stacklevel=4
            )

    def _mean_slope(self, passes: Passes, beta: float) -> tuple[float, float]:
        """Return the first and second derivative of the mean NLL in 1/T."""
        total, count = torch.zeros(2, dtype=torch.float64), 0
        for logits, labels in passes():
            parts = _slope_and_curvature(logits, labels, beta)
            total += torch.stack([part.sum() for part in parts]).cpu()
            count += len(labels)
        slope, curvature = (total / max(count, 1)).tolist()
        return slope, curvature

    def _choose_from_grid(self, passes: Passes) -> None:
        tables = torch.zeros(len(GRID), 3, GRID_BINS, dtype=torch.float64)
        for logits, labels in passes():
            logits = as_softmax(logits.double())
            highest, predicted = logits.max(dim=1)
            correct = predicted == labels
            for table, temperature in zip(tables, GRID, strict=True):
                normaliser = (logits / temperature).logsumexp(dim=1)
                conf = (highest / temperature - normaliser).exp().clamp(max=1)
                table += equal_width_bins(conf, correct, GRID_BINS).cpu()
        errors = binned_calibration_error(tables).tolist()
        self.temperature_ = GRID[errors.index(min(errors))]
        self.at_bound_ = self.temperature_ in (GRID[0], GRID[-1])
        if self.at_bound_:
            warnings.warn(
                f'the temperature of the lowest ECE is the last of the grid, {self.temperature_}',
                stacklevel=3,
            )


class _ClasswiseScaler(LogitScaler):
    """Fit ``u = z/T`` and then ``u + Du + b`` by L-BFGS, penalising D and b."""

    _diagonal_only: bool

    def _penalty(self, change: Tensor, shift: Tensor) -> Tensor:
        raise NotImplementedError

    def _fit(self, passes: Passes) -> None:
        logits, _ = next(iter(passes()))
        size = logits.shape[1]
        seen = torch.zeros(max(size, 2), dtype=torch.bool)
        for _, labels in passes():
            seen[labels.cpu()] = True
        if seen.sum() < 2:
            raise ValueError(
                f'all labels are of class {int(seen.nonzero()[0])}: a shift per class would learn '
                'to say nothing else; take a temperature, or data with more classes'
            )
        single = TemperatureScaler()
        single._fit(passes)
        self._temperature = single.temperature_
        shape = (size,) if self._diagonal_only else (size, size)
        self._change = torch.zeros(shape, dtype=torch.float64)
        self._offset = torch.zeros(size, dtype=torch.float64)
        self._minimise(passes, 200)

    def _refine(self, passes: Passes, max_passes: int) -> None:
        self._minimise(passes, max_passes)

    def _minimise(self, passes: Passes, max_passes: int) -> None:
        parameters = [self._change.requires_grad_(), self._offset.requires_grad_()]
        optimizer = torch.optim.LBFGS(
            parameters,
            max_iter=max_passes,
            max_eval=max_passes,
            tolerance_grad=1e-7,
            tolerance_change=1e-10,
            history_size=20,
            line_search_fn='strong_wolfe',
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            total, count = torch.zeros((), dtype=torch.float64), 0
            for logits, labels in passes():
                scaled = self._scale(logits.double())
                nll = torch.nn.functional.cross_entropy(
                    as_softmax(scaled), labels.to(scaled.device), reduction='sum'
                )
                nll.backward()
                total += nll.detach().cpu()
                count += len(labels)
            for parameter in parameters:
                parameter.grad /= count
            penalty = self._penalty(self._change, self._offset) / count
            penalty.backward()
            return total / count + penalty.detach()

        optimizer.step(closure)
        self._change, self._offset = self._change.detach(), self._offset.detach()

    def _scale_only(self, logits: Tensor) -> Tensor:
        scaled, change = logits / self._temperature, self._change.to(logits.device)
        return scaled + (scaled * change if self._diagonal_only else scaled @ change.T)

    def _shift(self) -> Tensor:
        return self._offset


class VectorScaler(_ClasswiseScaler):
    r"""Give each class a scale and a shift: :math:`z'_k = a_k z_k + b_k`.

    For binary logits ``(N, 1)`` this is Platt scaling. It minimises

    .. math:: \sum_i \mathrm{NLL}_i + \lambda_a \sum_k (T a_k - 1)^2 + \lambda_b \sum_k b_k^2

    with T the best single temperature, from which few data, or classes that they lack, thus hardly
    depart. It may change the argmax.

    Source: Guo et al., On Calibration of Modern Neural Networks, 2017, which has no penalty.

    Args:
        diagonal: :math:`\lambda_a`.
        intercept: :math:`\lambda_b`.

    Attributes:
        scale_: ``(K,)`` scales a.
        shift_: ``(K,)`` shifts b.

    Raises:
        ValueError: If a penalty is negative.
    """

    _diagonal_only = True

    def __init__(self, *, diagonal: float = 10.0, intercept: float = 10.0) -> None:
        _check_penalties(diagonal=diagonal, intercept=intercept)
        self.diagonal = diagonal
        self.intercept = intercept

    @property
    def scale_(self) -> Tensor:
        return (1 + self._change) / self._temperature

    @property
    def shift_(self) -> Tensor:
        return self._offset

    @property
    def parameters(self) -> dict:
        return {'scale': self.scale_.tolist(), 'shift': self.shift_.tolist()}

    def _penalty(self, change: Tensor, shift: Tensor) -> Tensor:
        return self.diagonal * change.square().sum() + self.intercept * shift.square().sum()


class MatrixScaler(_ClasswiseScaler):
    r"""Map logits by a full matrix and a shift: :math:`z' = Az + b`.

    With T the best single temperature, it minimises

    .. math:: \sum_i \mathrm{NLL}_i + \lambda_d \sum_k (T A_{kk} - 1)^2
        + \lambda_o \sum_{j \ne k} (T A_{jk})^2 + \lambda_b \sum_k b_k^2

    It has K² + K parameters, and may change the argmax.

    Source: Kull et al., Beyond Temperature Scaling, 2019, for penalties on the off-diagonal and the
    intercept; there they weigh against the mean NLL, so that more data do not outweigh them.

    Args:
        diagonal: :math:`\lambda_d`.
        off_diagonal: :math:`\lambda_o`.
        intercept: :math:`\lambda_b`.

    Attributes:
        matrix_: ``(K, K)`` matrix A.
        shift_: ``(K,)`` shifts b.

    Raises:
        ValueError: If a penalty is negative.
    """

    _diagonal_only = False

    def __init__(
        self, *, diagonal: float = 10.0, off_diagonal: float = 200.0, intercept: float = 10.0
    ) -> None:
        _check_penalties(diagonal=diagonal, off_diagonal=off_diagonal, intercept=intercept)
        self.diagonal = diagonal
        self.off_diagonal = off_diagonal
        self.intercept = intercept

    @property
    def matrix_(self) -> Tensor:
        return (torch.eye(len(self._change), dtype=torch.float64) + self._change) / (
            self._temperature
        )

    @property
    def shift_(self) -> Tensor:
        return self._offset

    @property
    def parameters(self) -> dict:
        return {'matrix': self.matrix_.tolist(), 'shift': self.shift_.tolist()}

    def _penalty(self, change: Tensor, shift: Tensor) -> Tensor:
        own = change.diagonal().square().sum()
        return (
            self.diagonal * own
            + self.off_diagonal * (change.square().sum() - own)
            + self.intercept * shift.square().sum()
        )


SCALERS = {'temperature': TemperatureScaler, 'vector': VectorScaler, 'matrix': MatrixScaler}


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


def _in_chunks(logits: Tensor, labels: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    rows = max(_CHUNK_VALUES // logits.shape[1], 1)
    yield from zip(logits.split(rows), labels.split(rows), strict=True)


def _slope_and_curvature(logits: Tensor, labels: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Return the derivatives ``(M,)`` of each row's NLL in 1/T, at 1/T = `beta`.

    They are the mean of the logits under the softmax less the true class's logit, and the variance
    of the logits under the softmax.
    """
    logits = as_softmax(logits.double())
    # Differences from the highest logit keep their digits.
    logits = logits - logits.amax(dim=1, keepdim=True)
    probs = (beta * logits).softmax(dim=1)
    mean = (probs * logits).sum(dim=1)
    own = logits.gather(1, labels.to(logits.device)[:, None])[:, 0]
    return mean - own, (probs * (logits - mean[:, None]).square()).sum(dim=1)


def _check_penalties(**penalties: float) -> None:
    for name, value in penalties.items():
        if not value >= 0 or np.isinf(value):
            raise ValueError(f'{name} must be a number of at least 0, got {value!r}')
