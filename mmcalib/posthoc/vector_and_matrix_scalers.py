"""A scale and a shift for each class, or a matrix and shifts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mmcalib.posthoc.logit_scaler import LogitScaler, Passes, as_softmax
from mmcalib.posthoc.temperature_scaler import TemperatureScaler


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


def _check_penalties(**penalties: float) -> None:
    for name, value in penalties.items():
        if not value >= 0 or math.isinf(value):
            raise ValueError(f'{name} must be a number of at least 0, got {value!r}')
