"""Scalings that are affine maps of the logits, which a model's last layer can absorb."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mmcalib.choices import CRITERIA
from mmcalib.errors import UserError
from mmcalib.metrics import expected_calibration_error
from mmcalib.options import check_choice, check_number
from mmcalib.posthoc.fit_rows import (
    logits_for_passes,
    nll_derivatives,
    read_rows,
    split_rows,
)
from mmcalib.posthoc.logits import gaps_to_top
from mmcalib.posthoc.scaler import FitStart, LogitScaler
from mmcalib.posthoc.temperature_search import (
    TEMPERATURE_BOUNDS,
    best_temperature,
    temperature_error,
)
from mmcalib.predictions.image_predictions import ImagePredictions

# The grid of Guo et al.
PAPER_TEMPERATURES = tuple(k / 10 for k in range(1, 101))
# Penalty of a squared shift of a class, in nats; a standard deviation of 0.22 in the prior.
PENALTY = 10.0


class AffineScaler(LogitScaler):
    """A scaling that folds into a linear layer."""

    affine = True

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
        learned = self.tensors
        if bias is None and 'shift' in learned:
            raise UserError('the layer has no bias to absorb the shift of the classes')
        # The values at 0 and at each input's weights determine an affine map.
        zeros = torch.zeros(1, len(weight), dtype=torch.float64, device='cpu')
        shift = self.apply(zeros, **learned)
        weight_of_inputs = weight.double().flatten(1).T
        folded_weight = self.apply(weight_of_inputs, **learned) - shift
        folded_weight = folded_weight.T.reshape(weight.shape)
        if bias is None:
            return folded_weight, None
        return folded_weight, self.apply(bias.double()[None], **learned)[0]


class TemperatureScaler(AffineScaler):
    r"""Divide all logits by one temperature T, which changes no prediction.

    By default T minimises the negative log-likelihood, which is convex in 1/T; the minimum is where
    its slope is 0. With ``criterion='ece-grid'`` T is the first of 0.1, 0.2, … 10.0 with the lowest
    ECE over 15 bins, as the paper chose it (Table "pre- and post-temperature scaling" of its
    appendix).

    Source: Guo et al., On Calibration of Modern Neural Networks, 2017.

    Args:
        criterion: ``'nll'`` or ``'ece-grid'``.

    Attributes:
        temperature_: T. It is 0.01 if no prediction is wrong, and 100 if the logits carry no
            information about the labels.
        at_bound_: Whether T is one of these, or an end of the grid.

    Raises:
        ValueError: If the criterion is unknown.
    """

    method = 'temperature'
    checks = {'criterion': partial(check_choice, choices=CRITERIA)}
    learned = {'temperature': 0}
    keeps_argmax = True

    def __init__(self, *, criterion: str = 'nll') -> None:
        self.criterion = criterion

    def apply(self, logits: Tensor, temperature: Tensor) -> Tensor:
        return logits / temperature

    @property
    def starts_at_temperature(self) -> bool:
        """Whether the temperature is that of the least NLL."""
        return self.criterion == 'nll'

    def fit_kept_rows(
        self,
        rows: ImagePredictions,
        is_kept: Tensor,
        temperature: float,
        similar: LogitScaler | None = None,
    ) -> TemperatureScaler:
        """Take the temperature as it is; no rows are copied."""
        self._set_parameters({'temperature': temperature})
        self.optimum = FitStart(temperature)
        self.num_predictions_ = int(is_kept.sum())
        self.num_logits_ = rows.logits.shape[1]
        return self

    @property
    def at_bound_(self) -> bool:
        """Whether the temperature is at a bound of the search, or at an end of the grid."""
        if self.criterion == 'nll':
            ends = TEMPERATURE_BOUNDS
        else:
            ends = (PAPER_TEMPERATURES[0], PAPER_TEMPERATURES[-1])
        return self.tensors['temperature'].item() in ends

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

        Raises:
            NotFittedError: Before :meth:`fit`.
            ValueError: As for :meth:`fit`, or if there is not a group per row.
        """
        temperature = self.tensors['temperature'].item()
        rows = read_rows(logits, labels, groups)
        if self.at_bound_:
            return float('nan')
        slopes, curvatures = nll_derivatives(rows, 1 / temperature)
        return temperature_error(temperature, slopes, curvatures, rows.images)

    def _fit(self, rows: ImagePredictions, start: FitStart) -> dict[str, float]:
        if self.criterion == 'nll':
            temperature = best_temperature(rows, start=start.temperature)
            self.optimum = FitStart(temperature)
            return {'temperature': temperature}
        return {'temperature': least_ece_temperature(rows)}


def least_ece_temperature(rows: ImagePredictions) -> float:
    """Return the first temperature of the paper's grid with the lowest ECE."""
    correct = (rows.predicted == rows.labels).cpu()
    errors = []
    for temperature in PAPER_TEMPERATURES:
        conf = []
        for (logits,) in split_rows(rows.logits):
            scaled = gaps_to_top(logits.double()) / temperature
            conf.append(scaled.softmax(dim=1).amax(dim=1))
        errors.append(expected_calibration_error(conf=torch.cat(conf).cpu(), correct=correct))
    return PAPER_TEMPERATURES[errors.index(min(errors))]


class ClasswiseScaler(AffineScaler):
    r"""An affine scaling whose parameters of each class have a Gaussian prior around a temperature.

    A change :math:`\delta` of the scale of a class moves its logit x by :math:`\delta x`, and a
    shift b moves it by b. So the prior of a scale is narrower than that of a shift by the mean
    square of the logits, as in Zellner's g-prior. Logits whose probability p is near 0 or 1 say
    nothing about either, so the mean is weighted by the curvature w of the likelihood:

    .. math:: h = \frac{1 + \sum_{ik} w_{ik} x_{ik}^2}{1 + \sum_{ik} w_{ik}}, \quad
        w_{ik} = p_{ik} (1 - p_{ik}), \quad x_{ik} = (z_{ik} - \bar z_i) / T

    The ones stand for one prediction of :math:`x^2 = 1`, which counts where all are saturated.

    Source: Zellner, On Assessing Prior Distributions and Bayesian Regression Analysis with
    g-Prior Distributions, 1986. The factor of ten was chosen on over-fitted logits of simulated
    classes, and tried on others: ``tools/benchmarks/fits.py``.
    """

    per_class = True
    takes_masked_classes = False

    def _minimize_nll(
        self,
        rows: ImagePredictions,
        temperature: float,
        weights: Tensor,
        start: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        self._information = class_information(rows.logits, temperature, weights)
        return super()._minimize_nll(rows, temperature, weights, start)


@dataclass(frozen=True)
class ClassInformation:
    """Sums over the rows, each of which counts as its effective predictions.

    Attributes:
        shift: ``(K,)`` sums of w of :class:`ClasswiseScaler`, the Fisher information on shifts.
        scale: ``(K,)`` sums of w x², the Fisher information on scales.
        mean_square: ``(K,)`` means of x².
        penalty: h.
    """

    shift: Tensor
    scale: Tensor
    mean_square: Tensor
    penalty: float


def class_information(logits: Tensor, temperature: float, weights: Tensor) -> ClassInformation:
    """Return what logits tell about the scales and shifts of a classwise scaling."""
    shift = logits.new_zeros(logits.shape[1], dtype=torch.float64)
    scale = torch.zeros_like(shift)
    squares = torch.zeros_like(shift)
    for (part,) in split_rows(logits):
        scaled = centred(logits_for_passes(part)) / temperature
        probs = scaled.sigmoid() if scaled.shape[1] == 1 else scaled.softmax(dim=1)
        curvature = probs.mul_(1 - probs)
        shift += curvature.sum(dim=0, dtype=torch.float64)
        part_squares = scaled.square_()
        squares += part_squares.sum(dim=0, dtype=torch.float64)
        scale += curvature.mul_(part_squares).sum(dim=0, dtype=torch.float64)
    share = weights.mean().item()
    return ClassInformation(
        shift=share * shift,
        scale=share * scale,
        mean_square=squares / len(logits),
        penalty=((1 + scale.sum()) / (1 + shift.sum())).item(),
    )


class VectorScaler(ClasswiseScaler):
    r"""Give each class a scale and a shift: :math:`z'_k = a_k (z_k - \bar z) + b_k`.

    The mean :math:`\bar z` of a prediction's logits is taken away because a softmax ignores it:
    what is added to all logits changes neither the fit nor the probabilities. For binary logits
    ``(N, 1)``, of which a sigmoid ignores nothing, it stays, and this is Platt scaling with a
    penalty. With T the best single temperature, it minimises

    .. math:: \frac{N_\mathrm{eff}}{N} \sum_i \mathrm{NLL}_i
        + 10 h \lambda_a \sum_k (T a_k - 1)^2 + \min(K, 10) \lambda_b \sum_k b_k^2

    with h of :class:`ClasswiseScaler` and the number :math:`N_\mathrm{eff}` of effective
    predictions, of which the pixels of one image hold fewer than there are of them. So few data, or
    classes that they lack, hardly depart from T. It may change the argmax.

    Source: Structured vector scaling (SVS) of Berta, Holzmüller, Jordan and Bach, Structured Matrix
    Scaling for Multi-Class Calibration, 2025, with other penalties. There both are K, and the
    logits are log-probabilities, which no layer could absorb, after 1/(N + 1) of the uniform
    distribution was mixed in.

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

    method = 'vector'
    checks = dict.fromkeys(('diagonal', 'intercept'), check_number)
    learned = {'scale': 1, 'shift': 1}

    def __init__(self, *, diagonal: float = 1.0, intercept: float = 1.0) -> None:
        self.diagonal = diagonal
        self.intercept = intercept

    def apply(self, logits: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        # Transpose is its own inverse; ONNX gets movedim(-1, 1) wrong where map sizes are free.
        return (centred(logits).transpose(1, -1) * scale + shift).transpose(1, -1)

    def penalties(self, num_logits: int) -> dict[str, float]:
        return {
            'scale': self.diagonal * PENALTY * self._information.penalty,
            'shift': self.intercept * min(num_logits, PENALTY),
        }

    def curvatures(self) -> dict[str, Tensor]:
        return {'scale': self._information.scale, 'shift': self._information.shift}


class MatrixScaler(ClasswiseScaler):
    r"""Map logits by a full matrix and a shift: :math:`z' = A(z - \bar z) + b`.

    The mean :math:`\bar z` of a prediction's logits is taken away as by :class:`VectorScaler`. With
    T the best single temperature, it minimises

    .. math:: \frac{N_\mathrm{eff}}{N} \sum_i \mathrm{NLL}_i
        + 10 h \lambda_d \sum_k (T A_{kk} - 1)^2
        + K \min(K - 1, 10) \lambda_o \sum_{j \ne k} (T A_{jk})^2
        + \min(K, 10) \lambda_b \sum_k b_k^2

    with h of :class:`ClasswiseScaler` and :math:`N_\mathrm{eff}` effective predictions. A logit
    moves by the sum of K - 1 off-diagonal elements times logits, whose prior variance stays the
    same for any number of classes if that of an element falls as 1/K. It has K² + K parameters,
    and may change the argmax.

    Source: Structured matrix scaling (SMS) of Berta, Holzmüller, Jordan and Bach, as for
    :class:`VectorScaler`; their penalty of an off-diagonal element is K(K - 1), which leaves almost
    nothing of the matrix where classes are many. The variance of 1/K is that of Neal, Priors for
    Infinite Networks, 1996.

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

    method = 'matrix'
    checks = dict.fromkeys(('diagonal', 'off_diagonal', 'intercept'), check_number)
    learned = {'matrix': 2, 'shift': 1}

    def __init__(
        self, *, diagonal: float = 1.0, off_diagonal: float = 1.0, intercept: float = 1.0
    ) -> None:
        self.diagonal = diagonal
        self.off_diagonal = off_diagonal
        self.intercept = intercept

    def apply(self, logits: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
        return (centred(logits).transpose(1, -1) @ matrix.T + shift).transpose(1, -1)

    def shown_parameters(self) -> dict[str, Tensor]:
        """Return the diagonal, the other entries and the shifts."""
        is_diagonal = torch.eye(len(self.matrix_), dtype=torch.bool, device='cpu')
        shown = {'diagonal': self.matrix_[is_diagonal]}
        if len(self.matrix_) > 1:
            shown['other entries'] = self.matrix_[~is_diagonal]
        return {**shown, 'shift': self.shift_}

    def penalties(self, num_logits: int) -> dict[str, Tensor | float]:
        information = self._information
        off_diagonal = self.off_diagonal * num_logits * min(num_logits - 1, PENALTY)
        matrix = information.shift.new_full((num_logits, num_logits), off_diagonal)
        matrix.fill_diagonal_(self.diagonal * PENALTY * information.penalty)
        return {'matrix': matrix, 'shift': self.intercept * min(num_logits, PENALTY)}

    def curvatures(self) -> dict[str, Tensor]:
        information = self._information
        # Elements off the diagonal are estimated, which spares a product of matrices.
        matrix = information.shift[:, None] * information.mean_square
        matrix.diagonal().copy_(information.scale)
        return {'matrix': matrix, 'shift': information.shift}


def centred(logits: Tensor) -> Tensor:
    """Return logits ``(N, K, *)`` less their mean over the classes, which a softmax ignores.

    Scales of the classes would turn the mean into differences between them. The single logit of a
    sigmoid is returned as it is, since its distance from 0 has a meaning.
    """
    if logits.shape[1] == 1:
        return logits
    return logits - logits.mean(dim=1, keepdim=True)
