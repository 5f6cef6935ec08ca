"""A scale and a shift for each class, or a matrix and shifts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from mmcalib.checks import check_number
from mmcalib.posthoc.affine_scaler import AffineScaler, LogitMap, add_shift, multiply
from mmcalib.posthoc.logit_scaler import LogitReader, with_other_class
from mmcalib.posthoc.temperature_scaler import TemperatureScaler

# Of the change of the scales (or of the matrix) and of the shifts.
Penalty = Callable[[Tensor, Tensor], Tensor]


class VectorScaler(AffineScaler):
    r"""Give each class a scale and a shift: :math:`z'_k = a_k (z_k - \bar z) + b_k`.

    The mean :math:`\bar z` of a prediction's logits is taken away because a softmax ignores it:
    what is added to all logits changes neither the fit nor the probabilities. For binary logits
    ``(N, 1)``, of which a sigmoid ignores nothing, it stays, and this is Platt scaling. With T the
    best single temperature, it minimises

    .. math:: \sum_i \mathrm{NLL}_i + \lambda_a \sum_k (T a_k - 1)^2 + \lambda_b \sum_k b_k^2

    so few data, or classes that they lack, hardly depart from T. It may change the argmax.

    Source: Guo et al., On Calibration of Modern Neural Networks, 2017, which has no penalty and
    takes the logits as they are.

    Args:
        diagonal: :math:`\lambda_a`.
        intercept: :math:`\lambda_b`.

    Attributes:
        scale_: ``(K,)`` scales a.
        shift_: ``(K,)`` shifts b.

    Raises:
        TypeError: If a penalty is no number.
        ValueError: If a penalty is negative or infinite.
    """

    learned = ('scale', 'shift')
    per_class = True

    def __init__(self, *, diagonal: float = 10.0, intercept: float = 10.0) -> None:
        self.diagonal = check_number('diagonal', diagonal)
        self.intercept = check_number('intercept', intercept)

    def _map(self, learned: Mapping[str, Tensor]) -> LogitMap:
        return LogitMap(learned['scale'], learned['shift'])

    def _fit(self, read: LogitReader, groups: Tensor | None) -> None:
        num_classes, temperature = _best_temperature(read)
        start = torch.ones(num_classes, dtype=torch.float64) / temperature
        self.scale_, self.shift_ = _minimise(
            read, start, torch.zeros_like(start), temperature, self._penalty, 200
        )
        self._temperature = temperature

    def _refine(self, read: LogitReader, max_passes: int) -> None:
        self.scale_, self.shift_ = _minimise(
            read, self.scale_, self.shift_, self._temperature, self._penalty, max_passes
        )

    def _penalty(self, change: Tensor, shift: Tensor) -> Tensor:
        return self.diagonal * change.square().sum() + self.intercept * shift.square().sum()


class MatrixScaler(AffineScaler):
    r"""Map logits by a full matrix and a shift: :math:`z' = A(z - \bar z) + b`.

    The mean :math:`\bar z` of a prediction's logits is taken away as by :class:`VectorScaler`. With
    T the best single temperature, it minimises

    .. math:: \sum_i \mathrm{NLL}_i + \lambda_d \sum_k (T A_{kk} - 1)^2
        + \lambda_o \sum_{j \ne k} (T A_{jk})^2 + \lambda_b \sum_k b_k^2

    It has K² + K parameters, and may change the argmax.

    Source: Kull et al., Beyond Temperature Scaling, 2019, for penalties on the off-diagonal and the
    intercept; there they weigh against the mean NLL, so that more data do not outweigh them, and
    the logits are taken as they are.

    Args:
        diagonal: :math:`\lambda_d`.
        off_diagonal: :math:`\lambda_o`.
        intercept: :math:`\lambda_b`.

    Attributes:
        matrix_: ``(K, K)`` matrix A.
        shift_: ``(K,)`` shifts b.

    Raises:
        TypeError: If a penalty is no number.
        ValueError: If a penalty is negative or infinite.
    """

    learned = ('matrix', 'shift')
    per_class = True

    def __init__(
        self, *, diagonal: float = 10.0, off_diagonal: float = 200.0, intercept: float = 10.0
    ) -> None:
        self.diagonal = check_number('diagonal', diagonal)
        self.off_diagonal = check_number('off_diagonal', off_diagonal)
        self.intercept = check_number('intercept', intercept)

    def _map(self, learned: Mapping[str, Tensor]) -> LogitMap:
        return LogitMap(learned['matrix'], learned['shift'])

    def _fit(self, read: LogitReader, groups: Tensor | None) -> None:
        num_classes, temperature = _best_temperature(read)
        start = torch.eye(num_classes, dtype=torch.float64) / temperature
        self.matrix_, self.shift_ = _minimise(
            read, start, start.new_zeros(num_classes), temperature, self._penalty, 200
        )
        self._temperature = temperature

    def _refine(self, read: LogitReader, max_passes: int) -> None:
        self.matrix_, self.shift_ = _minimise(
            read, self.matrix_, self.shift_, self._temperature, self._penalty, max_passes
        )

    def _penalty(self, change: Tensor, shift: Tensor) -> Tensor:
        own = change.diagonal().square().sum()
        return (
            self.diagonal * own
            + self.off_diagonal * (change.square().sum() - own)
            + self.intercept * shift.square().sum()
        )


def _best_temperature(read: LogitReader) -> tuple[int, float]:
    """Return how many logits a row has, and the single temperature to depart from.

    Raises:
        ValueError: If all labels are of one class.
    """
    size, seen = 0, set()
    for logits, labels in read():
        size = logits.shape[1]
        seen.update(labels.unique().tolist())
    if len(seen) < 2:
        raise ValueError(
            f'all labels are of class {seen.pop()}: a shift per class would learn to say nothing '
            'else; take a temperature, or data with more classes'
        )
    single = TemperatureScaler()
    single._fit(read, None)
    return size, single.temperature_


def _minimise(
    read: LogitReader,
    factor: Tensor,
    shift: Tensor,
    temperature: float,
    penalty: Penalty,
    max_passes: int,
) -> tuple[Tensor, Tensor]:
    """Return the factor and shift of the least penalised NLL, by L-BFGS from the given ones."""
    # In units of 1/T, as the penalties are, so that all parameters are of one size.
    same = torch.ones_like(factor) if factor.ndim == 1 else torch.eye(len(factor)).to(factor)
    change = (factor * temperature - same).requires_grad_()
    shift = shift.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [change, shift],
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
        for logits, labels in read():
            scaled = add_shift(multiply(logits.double(), (same + change) / temperature), shift)
            nll = torch.nn.functional.cross_entropy(
                with_other_class(scaled), labels.to(scaled.device), reduction='sum'
            )
            nll.backward()
            total += nll.detach().cpu()
            count += len(labels)
        for parameter in (change, shift):
            parameter.grad /= count
        penalised = penalty(change, shift) / count
        penalised.backward()
        return total / count + penalised.detach()

    optimizer.step(closure)
    return ((same + change) / temperature).detach(), shift.detach()
