"""A scale and a shift for each class, or a matrix and shifts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from mmcalib.checks import check_number
from mmcalib.posthoc.affine_scaler import AffineScaler, LogitMap, add_shift, multiply
from mmcalib.posthoc.logit_scaler import LogitReader, with_other_class
from mmcalib.posthoc.temperature_scaler import TemperatureScaler, effective_predictions

# Of the change of the scales (or of the matrix) and of the shifts.
Penalty = Callable[[Tensor, Tensor], Tensor]

_MAX_PASSES = 500


class PenalisedScaler(AffineScaler):
    """A scaling that departs from a temperature as far as the data outweigh a penalty."""

    per_class = True

    def _fit(self, read: LogitReader, groups: Tensor | None) -> None:
        size = _check_classes(read)
        single = TemperatureScaler()
        single._fit(read, None)
        self._temperature = single.temperature_
        self.num_effective_ = effective_predictions(read, self._temperature, groups)
        self._minimise(read, *self._start(size), _MAX_PASSES)

    def _minimise(self, read: LogitReader, factor: Tensor, shift: Tensor, max_passes: int) -> None:
        """Set the factor and shift of the least penalised NLL, by L-BFGS from the given ones."""
        from scipy.optimize import minimize  # takes a second to import, and few need it

        # In units of 1/T, as the penalties are, so that all parameters are of one size.
        same = torch.ones_like(factor) if factor.ndim == 1 else torch.eye(len(factor)).to(factor)
        start = torch.cat([(factor * self._temperature - same).flatten(), shift])

        def unpacked(values: Tensor) -> tuple[Tensor, Tensor]:
            return values[: -len(shift)].reshape(same.shape), values[-len(shift) :]

        def objective(given: np.ndarray) -> tuple[float, np.ndarray]:
            values = torch.tensor(given, requires_grad=True)
            total, count = 0.0, 0
            for logits, labels in read():
                change, shift = unpacked(values)
                scaled = multiply(logits.double(), (same + change) / self._temperature)
                scaled = with_other_class(add_shift(scaled, shift))
                nll = torch.nn.functional.cross_entropy(
                    scaled, labels.to(scaled.device), reduction='sum'
                )
                nll.backward()
                total += nll.item()
                count += len(labels)
            values.grad /= count
            penalty = self._penalty(*unpacked(values)) * len(shift) / self.num_effective_
            penalty.backward()
            return total / count + penalty.item(), values.grad.numpy()

        result = minimize(
            objective,
            start.numpy(),
            jac=True,
            method='L-BFGS-B',
            options=dict(maxiter=max_passes, maxfun=max_passes, ftol=1e-13, gtol=1e-7),
        )
        change, shift = unpacked(torch.from_numpy(result.x))
        self._take((same + change) / self._temperature, shift.clone())

    def _start(self, size: int) -> LogitMap:
        """Return the temperature as a scaling of this kind."""
        raise NotImplementedError

    def _take(self, factor: Tensor, shift: Tensor) -> None:
        raise NotImplementedError

    def _penalty(self, change: Tensor, shift: Tensor) -> Tensor:
        """Return the penalty against the summed NLL, divided by the number of logits."""
        raise NotImplementedError


class VectorScaler(PenalisedScaler):
    r"""Give each class a scale and a shift: :math:`z'_k = a_k (z_k - \bar z) + b_k`.

    The mean :math:`\bar z` of a prediction's logits is taken away because a softmax ignores it:
    what is added to all logits changes neither the fit nor the probabilities. For binary logits
    ``(N, 1)``, of which a sigmoid ignores nothing, it stays, and this is Platt scaling with a
    penalty. With T the best single temperature, it minimises

    .. math:: \frac{N_\mathrm{eff}}{N} \sum_i \mathrm{NLL}_i
        + \lambda_a K \sum_k (T a_k - 1)^2 + \lambda_b K \sum_k b_k^2

    with the number :math:`N_\mathrm{eff}` of effective predictions, of which the pixels of one
    image hold fewer than there are of them. So few data, or classes that they lack, hardly depart
    from T. It may change the argmax.

    Source: Structured vector scaling (SVS) of Berta, Holzmüller, Jordan and Bach, Structured Matrix
    Scaling for Multi-Class Calibration, 2025, with its penalties. There the logits are
    log-probabilities, which no layer could absorb, after 1/(N + 1) of the uniform distribution was
    mixed in.

    Args:
        diagonal: :math:`\lambda_a`.
        intercept: :math:`\lambda_b`.

    Attributes:
        scale_: ``(K,)`` scales a.
        shift_: ``(K,)`` shifts b.
        num_effective_: :math:`N_\mathrm{eff}` of the fit.

    Raises:
        TypeError: If a penalty is no number.
        ValueError: If a penalty is negative or infinite.
    """

    learned = ('scale', 'shift')

    def __init__(self, *, diagonal: float = 1.0, intercept: float = 1.0) -> None:
        self.diagonal = check_number('diagonal', diagonal)
        self.intercept = check_number('intercept', intercept)

    def _map(self, learned: Mapping[str, Tensor]) -> LogitMap:
        return LogitMap(learned['scale'], learned['shift'])

    def _start(self, size: int) -> LogitMap:
        ones = torch.ones(size, dtype=torch.float64)
        return LogitMap(ones / self._temperature, torch.zeros_like(ones))

    def _take(self, factor: Tensor, shift: Tensor) -> None:
        self.scale_, self.shift_ = factor, shift

    def _penalty(self, change: Tensor, shift: Tensor) -> Tensor:
        return self.diagonal * change.square().sum() + self.intercept * shift.square().sum()


class MatrixScaler(PenalisedScaler):
    r"""Map logits by a full matrix and a shift: :math:`z' = A(z - \bar z) + b`.

    The mean :math:`\bar z` of a prediction's logits is taken away as by :class:`VectorScaler`. With
    T the best single temperature, it minimises

    .. math:: \frac{N_\mathrm{eff}}{N} \sum_i \mathrm{NLL}_i
        + \lambda_d K \sum_k (T A_{kk} - 1)^2
        + \lambda_o K(K - 1) \sum_{j \ne k} (T A_{jk})^2 + \lambda_b K \sum_k b_k^2

    with :math:`N_\mathrm{eff}` effective predictions. It has K² + K parameters, and may change the
    argmax.

    Source: Structured matrix scaling (SMS) of Berta, Holzmüller, Jordan and Bach, as for
    :class:`VectorScaler`.

    Args:
        diagonal: :math:`\lambda_d`.
        off_diagonal: :math:`\lambda_o`.
        intercept: :math:`\lambda_b`.

    Attributes:
        matrix_: ``(K, K)`` matrix A.
        shift_: ``(K,)`` shifts b.
        num_effective_: :math:`N_\mathrm{eff}` of the fit.

    Raises:
        TypeError: If a penalty is no number.
        ValueError: If a penalty is negative or infinite.
    """

    learned = ('matrix', 'shift')

    def __init__(
        self, *, diagonal: float = 1.0, off_diagonal: float = 1.0, intercept: float = 1.0
    ) -> None:
        self.diagonal = check_number('diagonal', diagonal)
        self.off_diagonal = check_number('off_diagonal', off_diagonal)
        self.intercept = check_number('intercept', intercept)

    def _map(self, learned: Mapping[str, Tensor]) -> LogitMap:
        return LogitMap(learned['matrix'], learned['shift'])

    def _start(self, size: int) -> LogitMap:
        same = torch.eye(size, dtype=torch.float64)
        return LogitMap(same / self._temperature, same.new_zeros(size))

    def _take(self, factor: Tensor, shift: Tensor) -> None:
        self.matrix_, self.shift_ = factor, shift

    def _penalty(self, change: Tensor, shift: Tensor) -> Tensor:
        own = change.diagonal().square().sum()
        others = change.square().sum() - own
        return (
            self.diagonal * own
            + self.off_diagonal * (len(shift) - 1) * others
            + self.intercept * shift.square().sum()
        )


def _check_classes(read: LogitReader) -> int:
    """Return how many logits a row has.

    Raises:
        ValueError: If all labels are of one class.
    """
    size, seen = 0, set()
    for logits, labels in read():
        size = logits.shape[1]
        seen.update(labels.unique().tolist())
    if len(seen) < 2:
        raise ValueError(
            f'all labels have class {seen.pop()}: a shift per class would learn to predict '
            'nothing else. Use a temperature, or data with more classes'
        )
    return size
