"""A map of the logits' gaps for each predicted class, which keeps the class."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from mmcalib.checks import check_number
from mmcalib.posthoc.effective_number import effective_number
from mmcalib.posthoc.gaps_to_top import gaps_to_top, of_given_head
from mmcalib.posthoc.logit_scaler import LogitReader, LogitScaler, in_chunks
from mmcalib.posthoc.predicted_class_temperature_scaler import PredictedClassTemperatureScaler
from mmcalib.posthoc.temperature_scaler import slope_and_curvature

# Of the entries on the diagonal, in units of 1/T, so that a prediction stays above the others.
_LEAST = 1e-3
_MAX_STEPS = 1000


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
    that they amount to (:func:`~mmcalib.posthoc.effective_number.effective_number`). So a class
    that is rarely predicted, or in few images, hardly departs from its temperature, nor that from
    the single temperature of all. The minimum is that of a convex function, found by L-BFGS-B.

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

    learned = ('matrix', 'shift')
    keeps_argmax = True

    def __init__(
        self, *, diagonal: float = 10.0, off_diagonal: float = 200.0, intercept: float = 10.0
    ) -> None:
        self.diagonal = check_number('diagonal', diagonal)
        self.off_diagonal = check_number('off_diagonal', off_diagonal)
        self.intercept = check_number('intercept', intercept)

    def _apply(self, logits: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        gaps, predicted = gaps_to_top(logits)
        # Not len(), nor a dimension moved: their export to ONNX knows but one size.
        rows, predicted = (x.reshape(*x.shape[:2], -1) for x in (gaps, predicted.unsqueeze(1)))
        scaled = rows
        # A matrix for each prediction would take K times the memory of the logits.
        for number in range(gaps.shape[1]):
            own = learned['matrix'][number] @ rows - learned['shift'][number][:, None]
            scaled = torch.where(predicted == number, own, scaled)
        return of_given_head(scaled.reshape(gaps.shape), logits)

    def _fit(self, read: LogitReader, groups: Tensor | None) -> None:
        classes = PredictedClassTemperatureScaler()
        classes._fit(read, groups)
        betas = 1 / classes.temperature_
        matrix = torch.diag_embed(betas[:, None].expand(-1, len(betas))).clone()
        shift = torch.zeros_like(matrix[0])
        for number, beta in enumerate(betas.tolist()):
            matrix[number, number, number] = 0
            gaps, labels, rows = _predicted_as(read, number)
            if len(labels):
                slopes, _ = slope_and_curvature(gaps, labels, beta)
                weight = effective_number(slopes.cpu(), None if groups is None else groups[rows])
                place = torch.tensor([other for other in range(len(betas)) if other != number])
                own, shift[number, place] = self._fit_class(gaps, labels, place, beta, weight)
                matrix[number, place[:, None], place] = own
        self.matrix_, self.shift_ = matrix, shift

    def _fit_class(
        self, gaps: Tensor, labels: Tensor, others: Tensor, beta: float, weight: float
    ) -> tuple[Tensor, Tensor]:
        """Return the matrix ``(K-1, K-1)`` and the shifts ``(K-1,)`` of what is predicted alike."""
        from scipy.optimize import minimize  # takes a second to import, and few need it

        size = len(others)
        here = others.to(gaps.device)

        def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
            leaf = torch.tensor(values).requires_grad_()
            matrix, shift = leaf[:-size].view(size, size), leaf[-size:]
            penalty = self._penalty(matrix, shift) / weight
            penalty.backward()
            total = penalty.item()
            for part, truth in in_chunks(gaps, labels):
                scaled = torch.zeros_like(part)
                own = part[:, here] @ (beta * matrix).T.to(part.device) - shift.to(part.device)
                nll = cross_entropy(scaled.index_copy(1, here, own), truth, reduction='sum')
                (nll / len(labels)).backward()
                total += nll.item() / len(labels)
            return total, leaf.grad.numpy()

        least = torch.zeros(size + 1, size, dtype=torch.float64)
        least.diagonal().fill_(_LEAST)
        start = torch.eye(size + 1, size, dtype=torch.float64)
        found = minimize(
            objective,
            start.flatten().numpy(),
            jac=True,
            method='L-BFGS-B',
            bounds=[(value, None) for value in least.flatten().tolist()],
            options={'maxiter': _MAX_STEPS, 'maxfun': 2 * _MAX_STEPS, 'ftol': 1e-10, 'gtol': 1e-7},
        )
        values = torch.as_tensor(found.x)
        return beta * values[:-size].view(size, size), values[-size:]

    def _penalty(self, matrix: Tensor, shift: Tensor) -> Tensor:
        own, all_squares = matrix.diagonal(), matrix.square().sum()
        return (
            self.diagonal * (own - 1).square().sum()
            + self.off_diagonal * (all_squares - own.square().sum())
            + self.intercept * shift.square().sum()
        )


def _predicted_as(read: LogitReader, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return gaps ``(M, K)``, labels ``(M,)`` and places of what is predicted to be one class."""
    parts, count = [], 0
    for logits, labels in read():
        gaps, predicted = gaps_to_top(logits.double())
        rows = (predicted == number).nonzero().squeeze(1)
        parts.append((gaps[rows], labels.to(rows.device)[rows], rows.cpu() + count))
        count += len(labels)
    gaps, labels, rows = (torch.cat(column) for column in zip(*parts, strict=True))
    return gaps, labels, rows
