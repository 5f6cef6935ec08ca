"""Scalings by the predicted class, which keep it.

They map the gaps between the logits and the highest one. A gap of 0 stays 0 and any other one stays
below it, so ties and the smallest differences keep their order. A division of the logits themselves
may round two of them to one number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from mmcalib.options import check_number
from mmcalib.posthoc.fit_rows import effective_weights, logits_for_passes, nll_derivatives
from mmcalib.posthoc.logits import gaps_to_top, top_class, without_other_class
from mmcalib.posthoc.scaler import FitStart, LogitScaler
from mmcalib.posthoc.temperature_search import TEMPERATURE_BOUNDS
from mmcalib.predictions.image_predictions import ImagePredictions

# A matrix has at least this on its diagonal, in units of 1/T, so that the predicted class stays
# above the others.
LEAST_DIAGONAL = 1e-3
# A search for the temperatures of classes ends with a smaller relative change of all of them.
LEAST_CHANGE = 1e-6
# Halving the whole interval of the bounds takes fewer steps.
MOST_STEPS = 60


class PredictedClassTemperatureScaler(LogitScaler):
    r"""Divide the logits of a prediction by the temperature of its predicted class.

    .. math:: z'_k = (z_k - z_c) / T_c, \qquad c = \arg\max_k z_k

    which changes no argmax. With T the single temperature of the least NLL, those of the classes
    minimise

    .. math:: \sum_c \frac{N_c}{n_c} \sum_{i: c_i = c} \mathrm{NLL}_i
        + \lambda \sum_c (T / T_c - 1)^2

    where the :math:`n_c` predictions of a class, such as pixels of a few images, count as the
    number :math:`N_c` of independent ones that they are worth
    (:func:`~mmcalib.posthoc.fit_rows.effective_number`). So a class that is rarely predicted, or in
    few images, hardly departs from T, and one that never is has T.

    Source: after Frenkel and Goldberger, Network Calibration by Class-based Temperature Scaling,
    2021; the penalty and its units are ours.

    Args:
        penalty: :math:`\lambda`, in effective predictions.

    Attributes:
        temperature_: ``(K,)`` temperatures, within [0.01, 100], or 0.01 T and 100 T if T is not.
            For the logits of a sigmoid ``(2,)``: of those that are not positive, and of others.

    Raises:
        TypeError: If the penalty is no number.
        ValueError: If the penalty is negative or infinite.
    """

    method = 'class-temperatures'
    checks = {'penalty': check_number}
    learned = {'temperature': 1}
    keeps_argmax = True
    by_class = True

    def __init__(self, *, penalty: float = 10.0) -> None:
        self.penalty = penalty

    def start(self, num_logits: int) -> dict[str, Tensor]:
        return {'beta': torch.ones(max(num_logits, 2), device='cpu')}

    def learned_parameters(self, temperature: float, beta: Tensor) -> dict[str, Tensor]:
        return {'temperature': (temperature / beta).clamp(*temperature_bounds(temperature))}

    def apply(self, logits: Tensor, temperature: Tensor) -> Tensor:
        predicted = top_class(logits)
        scaled = gaps_to_top(logits) / temperature[predicted].unsqueeze(1)
        return without_other_class(scaled, num_logits=logits.shape[1])

    def _minimize_nll(
        self,
        rows: ImagePredictions,
        temperature: float,
        weights: Tensor,
        start: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """Return the factors β = T / T_c with the least penalised NLL.

        No two classes have a row in common, so one pass serves a Newton step of each.
        """
        num_classes = max(rows.logits.shape[1], 2)
        zeros = torch.zeros(num_classes, dtype=torch.float64, device=weights.device)
        predicted = rows.predicted
        beta = start['beta'].to(weights)
        least, most = temperature_bounds(temperature)
        low = zeros + temperature / most
        high = zeros + temperature / least
        for _ in range(MOST_STEPS):
            slopes, curvatures = nll_derivatives(rows, beta[predicted] / temperature)
            slope = zeros.index_add(0, predicted, weights * slopes) / temperature
            curvature = zeros.index_add(0, predicted, weights * curvatures) / temperature**2
            slope += 2 * self.penalty * (beta - 1)
            curvature += 2 * self.penalty
            low = torch.where(slope < 0, beta, low)
            high = torch.where(slope > 0, beta, high)
            step = torch.where(slope == 0, 0.0, -slope / curvature)
            is_inside = (beta + step >= low) & (beta + step <= high)
            following = torch.where(is_inside, beta + step, (low * high).sqrt())
            change = (following / beta - 1).abs().max()
            beta = following
            if change < LEAST_CHANGE:
                break
        return {'beta': beta}


def temperature_bounds(temperature: float) -> tuple[float, float]:
    """Return the bounds of the temperatures of classes, for that of all of them."""
    low, high = TEMPERATURE_BOUNDS
    if not low <= temperature <= high:  # Cosines, for example, have a small temperature.
        return low * temperature, high * temperature
    return low, high


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
    that they are worth (:func:`~mmcalib.posthoc.fit_rows.effective_number`). So a class that is
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
        shift_: ``(K, K)``, b of each predicted class, 0 at its own index. For the logits of a
            sigmoid both are of two classes.

    Raises:
        TypeError: If a penalty is no number.
        ValueError: If a penalty is negative or infinite.
    """

    method = 'class-conditional'
    checks = dict.fromkeys(('diagonal', 'off_diagonal', 'intercept'), check_number)
    learned = {'matrix': 3, 'shift': 2}
    keeps_argmax = True
    takes_masked_classes = False
    by_class = True

    def __init__(
        self, *, diagonal: float = 10.0, off_diagonal: float = 200.0, intercept: float = 10.0
    ) -> None:
        self.diagonal = diagonal
        self.off_diagonal = off_diagonal
        self.intercept = intercept

    def shown_parameters(self) -> dict[str, Tensor]:
        """Return the diagonals, the other entries and the shifts, of other classes than the own."""
        num_classes = len(self.shift_)
        is_other = ~torch.eye(num_classes, dtype=torch.bool, device='cpu')
        diagonals = self.matrix_.diagonal(dim1=1, dim2=2)
        shown = {'diagonal': diagonals[is_other]}
        if num_classes > 2:
            is_mixed = is_other & is_other[:, :, None] & is_other[:, None, :]
            shown['other entries'] = self.matrix_[is_mixed]
        return {**shown, 'shift': self.shift_[is_other]}

    def apply(self, logits: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
        gaps = gaps_to_top(logits)
        predicted = top_class(logits).unsqueeze(1)
        # Neither len() nor a moved axis: their export to ONNX would fix the size of maps.
        gaps_of_pixels = gaps.unsqueeze(-1).flatten(2)
        predicted = predicted.unsqueeze(-1).flatten(2)
        scaled = gaps_of_pixels
        # A matrix for each prediction would take K times the memory of the logits.
        for label in range(gaps.shape[1]):
            scaled_by_label = matrix[label] @ gaps_of_pixels - shift[label][:, None]
            scaled = torch.where(predicted == label, scaled_by_label, scaled)
        scaled = scaled.reshape(gaps.shape)
        return without_other_class(scaled, num_logits=logits.shape[1])

    def _fit(self, rows: ImagePredictions, start: FitStart) -> dict[str, Tensor]:
        class_scaler = PredictedClassTemperatureScaler()
        temperatures = class_scaler._fit(rows, FitStart(start.temperature))['temperature']
        num_classes = len(temperatures)
        matrix_shape = (num_classes, num_classes, num_classes)
        matrix = torch.zeros(matrix_shape, dtype=torch.float64, device='cpu')
        shift = torch.zeros(num_classes, num_classes, dtype=torch.float64, device='cpu')
        optima = {'matrix': matrix.clone(), 'shift': shift.clone()}
        self.num_effective_ = 0.0
        for label, temperature in enumerate(temperatures.tolist()):
            label_scaler = _OneClassScaler(label, **self.get_params())
            label_rows = rows.select(rows.predicted == label)
            fitted = label_scaler.start(num_classes)
            if start.tensors is not None:
                fitted = {name: value[label] for name, value in start.tensors.items()}
            if len(label_rows):
                weights = effective_weights(label_rows, 1 / temperature)
                self.num_effective_ += weights.sum().item()
                # The gaps are the same in all passes.
                gaps = gaps_to_top(logits_for_passes(label_rows.logits))
                label_rows = replace(label_rows, logits=gaps)
                fitted = label_scaler._minimize_nll(label_rows, temperature, weights, fitted)
            learned = label_scaler.learned_parameters(temperature, **fitted)
            matrix[label] = learned['matrix']
            shift[label] = learned['shift']
            # The predicted class itself has no gap.
            matrix[label, label] = 0
            matrix[label, :, label] = 0
            shift[label, label] = 0
            for name, value in fitted.items():
                optima[name][label] = value
        self.optimum = FitStart(class_scaler.optimum.temperature, optima)
        return {'matrix': matrix, 'shift': shift}


class _OneClassScaler(ClassConditionalScaler):
    """The map of the predictions of one class, whose logits are the gaps to it.

    Args:
        label: The predicted class.
        **options: See :class:`ClassConditionalScaler`.
    """

    bounds = {'matrix': (0.0, float('inf')), 'shift': (0.0, float('inf'))}

    def __init__(self, label: int, **options: float) -> None:
        super().__init__(**options)
        self.label = label

    def start(self, num_logits: int) -> dict[str, Tensor]:
        num_classes = max(num_logits, 2)
        return {
            'matrix': (1 - LEAST_DIAGONAL) * torch.eye(num_classes, device='cpu'),
            'shift': torch.zeros(num_classes, device='cpu'),
        }

    def learned_parameters(
        self, temperature: float, matrix: Tensor, shift: Tensor
    ) -> dict[str, Tensor]:
        least_matrix = LEAST_DIAGONAL * torch.eye(len(shift), device='cpu').to(matrix)
        return {'matrix': (matrix + least_matrix) / temperature, 'shift': shift}

    def apply(self, logits: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
        is_other = torch.ones(logits.shape[1], dtype=logits.dtype, device=logits.device)
        is_other[self.label] = 0
        return (logits @ matrix.T - shift) * is_other

    def _minimize_nll(
        self,
        rows: ImagePredictions,
        temperature: float,
        weights: Tensor,
        start: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        scaled = rows.logits / temperature
        probs = scaled.softmax(dim=1)
        information = (probs * (1 - probs) * weights[:, None].to(probs)).double()
        self._curvatures = {
            'matrix': information.T @ scaled.double().square(),
            'shift': information.sum(dim=0),
        }
        return super()._minimize_nll(rows, temperature, weights, start)

    def curvatures(self) -> dict[str, Tensor]:
        return self._curvatures

    def penalties(self, num_logits: int) -> dict[str, Tensor | float]:
        matrix = torch.full((num_logits, num_logits), float(self.off_diagonal), device='cpu')
        return {'matrix': matrix.fill_diagonal_(self.diagonal), 'shift': self.intercept}
