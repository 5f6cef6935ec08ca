"""Scalings by the predicted class, which keep it.

They are maps of how far the logits lie below the highest. A gap that is 0 stays 0 and one that is
not stays below it, so ties and the smallest differences come out in the same order; of logits as
they are, a division may round two to one number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.options import check_number
from mmcalib.posthoc.scaler import BOUNDS, LogitScaler, Rows, gaps_to_top, of_given_head

# Of the entries on the diagonal, in units of 1/T, so that a prediction stays above the others.
LEAST = 1e-3


class PredictedClassTemperatureScaler(LogitScaler):
    r"""Divide the logits of a prediction by the temperature of its predicted class.

    .. math:: z'_k = (z_k - z_c) / T_c, \qquad c = \arg\max_k z_k

    which changes no argmax. With T the single temperature of the least NLL, those of the classes
    minimise

    .. math:: \sum_c \frac{N_c}{n_c} \sum_{i: c_i = c} \mathrm{NLL}_i
        + \lambda \sum_c (T / T_c - 1)^2

    where the :math:`n_c` predictions of a class, such as pixels of a few images, count as the
    number :math:`N_c` of independent ones that they amount to
    (:func:`~mmcalib.posthoc.scaler.effective_number`). So a class that is rarely predicted, or in
    few images, hardly departs from T, and one that never is has T.

    Source: after Frenkel and Goldberger, Network Calibration by Class-based Temperature Scaling,
    2021; the penalty and its units are ours.

    Args:
        penalty: :math:`\lambda`, in effective predictions.

    Attributes:
        temperature_: ``(K,)``, within [0.01, 100], or 0.01 T and 100 T if T is not; of a sigmoid's
            logits (2,), of those that are not positive and of the positive ones.

    Raises:
        TypeError: If the penalty is no number.
        ValueError: If the penalty is negative or infinite.
    """

    method = 'class-temperatures'
    checks = {'penalty': check_number}
    learned = {'temperature': 1}
    keeps_argmax = by_class = True

    def __init__(self, *, penalty: float = 10.0) -> None:
        self.penalty = penalty

    def start(self, num_logits: int) -> dict[str, Tensor]:
        return {'beta': torch.ones(max(num_logits, 2), device='cpu')}

    def learn(self, temperature: float, beta: Tensor) -> dict[str, Tensor]:
        low, high = BOUNDS
        if not low <= temperature <= high:  # of cosines, say
            low, high = low * temperature, high * temperature
        return {'temperature': (temperature / beta).clamp(low, high)}

    def apply(self, logits: Tensor, temperature: Tensor) -> Tensor:
        gaps, predicted = gaps_to_top(logits)
        return of_given_head(gaps / temperature[predicted].unsqueeze(1), logits)

    def cost(self, beta: Tensor) -> Tensor:
        return self.penalty * (beta - 1).square().sum()


class ClassConditionalScaler(LogitScaler):
    r"""Map the gaps between the predicted class and the others, with a matrix and shift per class.

    With c the predicted class and the gaps :math:`m_k = z_c - z_k \ge 0` to the other classes,

    .. math:: z'_c = 0, \qquad z'_j = -\sum_{k \ne c} A^c_{jk} m_k - b^c_j,
        \qquad A^c_{jk} \ge 0,\; A^c_{jj} > 0,\; b^c_j \ge 0

    which changes no argmax, though the order of the others. With T the temperature of the class by
    :class:`~mmcalib.posthoc.PredictedClassTemperatureScaler`, it minimises for each predicted class
    on its own

    .. math:: \frac{N_c}{n_c} \sum_{i: c_i = c} \mathrm{NLL}_i + \lambda_d \sum_j (T A^c_{jj} - 1)^2
        + \lambda_o \sum_{j \ne k} (T A^c_{jk})^2 + \lambda_b \sum_j (b^c_j)^2

    where the :math:`n_c` predictions of a class count as the number :math:`N_c` of independent ones
    that they amount to (:func:`~mmcalib.posthoc.scaler.effective_number`). So a class that is
    rarely predicted, or in few images, hardly departs from its temperature, nor that from the
    single temperature of all.

    It has K²(K - 1) parameters, and each prediction is mapped by the matrices of all classes: for
    tens of classes, not for hundreds.

    Source: the argmax-preserving map (CMSap) of Kirscher et al., Rethinking Post-Hoc Calibration in
    Semantic Segmentation, 2026. There A and b are softplus of what is learned, fitted to the mean
    NLL of all predictions by Adam; its penalty, if any, is on the means of the squares of the
    affine map's off-diagonal and shifts, so it weighs the same however few predictions there are,
    and pulls towards no temperature.

    Args:
        diagonal: :math:`\lambda_d`.
        off_diagonal: :math:`\lambda_o`.
        intercept: :math:`\lambda_b`.

    Attributes:
        matrix_: ``(K, K, K)``, A of each predicted class, 0 in its own row and column.
        shift_: ``(K, K)``, b of each predicted class, 0 for its own. Of a sigmoid's logits both are
            of two classes.

    Raises:
        TypeError: If a penalty is no number.
        ValueError: If a penalty is negative or infinite.
    """

    method = 'class-conditional'
    checks = dict.fromkeys(('diagonal', 'off_diagonal', 'intercept'), check_number)
    learned = {'matrix': 3, 'shift': 2}
    keeps_argmax = by_class = True

    def __init__(
        self, *, diagonal: float = 10.0, off_diagonal: float = 200.0, intercept: float = 10.0
    ) -> None:
        self.diagonal = diagonal
        self.off_diagonal = off_diagonal
        self.intercept = intercept

    def apply(self, logits: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
        gaps, predicted = gaps_to_top(logits)
        # Not len(), nor a dimension moved: their export to ONNX knows but one size.
        rows, predicted = (x.reshape(*x.shape[:2], -1) for x in (gaps, predicted.unsqueeze(1)))
        scaled = rows
        # A matrix for each prediction would take K times the memory of the logits.
        for number in range(gaps.shape[1]):
            own = matrix[number] @ rows - shift[number][:, None]
            scaled = torch.where(predicted == number, own, scaled)
        return of_given_head(scaled.reshape(gaps.shape), logits)

    def _fit(self, rows: Rows) -> dict[str, Tensor]:
        temperatures = PredictedClassTemperatureScaler()._fit(rows)['temperature'].tolist()
        size, predicted = len(temperatures), rows.predicted
        of_one = _PredictedAlike(**self.get_params())
        matrix = torch.zeros(size, size, size, dtype=torch.float64, device='cpu')
        shift = torch.zeros(size, size, dtype=torch.float64, device='cpu')
        self.num_effective_ = 0.0
        for number, temperature in enumerate(temperatures):
            fitted, own = of_one.start(size), rows.only(predicted == number)
            if len(own.y):
                weights = own.weights(1 / temperature)
                self.num_effective_ += weights.sum().item()
                fitted = of_one._fitted(own, temperature, weights)
            learned = of_one.learn(temperature, **fitted)
            matrix[number], shift[number] = learned['matrix'], learned['shift']
            matrix[number, number] = matrix[number, :, number] = shift[number, number] = 0
        return {'matrix': matrix, 'shift': shift}


class _PredictedAlike(ClassConditionalScaler):
    """The map of one predicted class."""

    bounds = {'matrix': (0.0, float('inf')), 'shift': (0.0, float('inf'))}

    def start(self, num_logits: int) -> dict[str, Tensor]:
        size = max(num_logits, 2)
        return {
            'matrix': (1 - LEAST) * torch.eye(size, device='cpu'),
            'shift': torch.zeros(size, device='cpu'),
        }

    def learn(self, temperature: float, matrix: Tensor, shift: Tensor) -> dict[str, Tensor]:
        matrix = (matrix + LEAST * torch.eye(len(shift), device='cpu').to(matrix)) / temperature
        return {'matrix': matrix, 'shift': shift}

    def apply(self, logits: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
        gaps, predicted = gaps_to_top(logits)
        scaled = gaps @ matrix.T - shift
        return of_given_head(scaled.scatter(1, predicted[:, None], 0.0), logits)

    def cost(self, matrix: Tensor, shift: Tensor) -> Tensor:
        own = self.diagonal * (matrix.diagonal() + LEAST - 1).square().sum()
        others = matrix.square().sum() - matrix.diagonal().square().sum()
        return own + self.off_diagonal * others + self.intercept * shift.square().sum()
