"""A rising curve from the model's confidence to how often it is right."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmcalib.errors import UserError
from mmcalib.posthoc.fit_rows import effective_weights, split_rows
from mmcalib.posthoc.logits import MASKED, gaps_to_top, top_class, without_other_class
from mmcalib.posthoc.scaler import FitStart, LogitScaler
from mmcalib.posthoc.temperature_search import best_temperature
from mmcalib.predictions.image_predictions import ImagePredictions

# A confidence stays so far above the one at which another class would be as likely.
LEAST_LEAD = 1e-6
# Higher log-odds are those of predictions whose other classes are all masked.
MOST_LOG_ODDS = 1e300


class IsotonicScaler(LogitScaler):
    r"""Replace the confidence by the accuracy that isotonic regression predicts for it.

    With p the probabilities after the temperature of the least NLL, k the predicted class and c(·)
    the curve over the log-odds of its probability, a line through the centres of the steps of
    isotonic regression,

    .. math:: p'_k = \max(c(p_k), r / (1 + r) + 10^{-6}),
        \quad p'_j = (1 - p'_k)\,p_j / (1 - p_k), \quad r = \max_{j \ne k} p_j / (1 - p_k)

    so all sum to 1, and no argmax changes: a curve below what the predicted class needs to stay
    ahead of the second, 1/2 of two classes, is not followed. It keeps a distance of 1/(N + 2) from
    0 and 1, with N effective predictions, so that logits are finite. Scaled logits are
    log-probabilities, those of a sigmoid log-odds. Only the confidence is calibrated: the other
    classes keep the proportions that the temperature gives them.

    Source: Zadrozny and Elkan, Transforming Classifier Scores into Accurate Multiclass Probability
    Estimates, 2002, for two classes; the centres are those of Oron and Flournoy, Centered Isotonic
    Regression, 2017. Between the steps' ends, which can be as near as two predictions, the
    rounding of single precision would decide.

    Attributes:
        temperature_: T.
        knots_: ``(B,)`` log-odds of the confidence, ascending: the mean of each step.
        errors_: ``(B,)`` share of wrong predictions there, 1 - c.
    """

    method = 'isotonic'
    learned = {'temperature': 0, 'knots': 1, 'errors': 1}
    keeps_argmax = True
    has_near_steps = True

    def _fit(self, rows: ImagePredictions, start: FitStart) -> dict[str, Any]:
        temperature = best_temperature(rows, start=start.temperature)
        self.optimum = FitStart(temperature)
        odds = []
        for (logits,) in split_rows(rows.logits):
            odds.append(split_probabilities(logits.double(), temperature).log_odds[:, 0])
        return self._fit_curve(rows, temperature, torch.cat(odds), rows.predicted != rows.labels)

    def _fit_curve(
        self, rows: ImagePredictions, temperature: float, odds: Tensor, is_wrong: Tensor
    ) -> dict[str, Any]:
        """Return the learned parameters, by name.

        Args:
            rows: The predictions.
            temperature: T.
            odds: ``(M,)`` log-odds of the confidence at this temperature.
            is_wrong: ``(M,)`` mask of the wrong predictions.
        """
        from sklearn.isotonic import isotonic_regression  # The import takes a second; few need it.

        self.num_effective_ = effective_weights(rows, 1 / temperature).sum().item()
        is_open = odds < MOST_LOG_ODDS  # The others are certain, and would stretch the last step.
        if not is_open.any():
            raise UserError(
                'all predictions have one class, and mask the others: there is no curve to fit'
            )
        positions = odds[is_open].cpu().numpy()
        # Tied confidences, such as those of votes, may differ in their last bits.
        _, tie_index, counts = np.unique(
            positions.astype(np.float32), return_inverse=True, return_counts=True
        )
        num_wrong = np.bincount(tie_index, weights=is_wrong[is_open].cpu().numpy())
        error_rates = isotonic_regression(
            num_wrong / counts, sample_weight=counts, increasing=False
        )[tie_index]
        levels, step_index, counts = np.unique(error_rates, return_inverse=True, return_counts=True)
        centres = np.bincount(step_index, weights=positions) / counts
        least = 1 / (self.num_effective_ + 2)
        # The levels ascend, so the log-odds of the confidence descend.
        knots = torch.from_numpy(centres).flip(0)
        errors = torch.from_numpy(levels).flip(0).clamp(least, 1 - least)
        return {'temperature': temperature, 'knots': knots, 'errors': errors}

    def fit_confidence_rows(self, rows: ImagePredictions) -> LogitScaler:
        """Learn the curve alone, without a temperature."""
        odds = rows.logits[:, 0]
        self._set_parameters(
            self._fit_curve(rows, temperature=1.0, odds=odds, is_wrong=rows.labels == 0)
        )
        self.num_predictions_ = len(rows)
        self.num_logits_ = 1
        return self

    def _confidence_from_odds(self, odds: Tensor) -> Tensor:
        return 1 - interpolate(odds[:, 0], self.tensors['knots'], self.tensors['errors'])

    def shown_parameters(self) -> dict[str, Tensor]:
        """Return the temperature, and the accuracies of the corners of the curve."""
        name = f'accuracy at {len(self.errors_)} confidences'
        return {'temperature': self.tensors['temperature'], name: 1 - self.errors_}

    def apply(self, logits: Tensor, temperature: Tensor, knots: Tensor, errors: Tensor) -> Tensor:
        split = split_probabilities(logits, temperature)
        # The second class has the share s of the others: it is as likely if the error is 1/(1 + s).
        most_error = (-split.log_second_share).sigmoid() - LEAST_LEAD
        error = torch.minimum(interpolate(split.log_odds, knots, errors), most_error)
        log_conf = (-error).log1p()
        log_others = error.log() + split.log_probs - split.log_others
        scaled = torch.where(split.is_predicted, log_conf, log_others)
        return without_other_class(scaled, num_logits=logits.shape[1])


def interpolate(values: Tensor, knots: Tensor, heights: Tensor) -> Tensor:
    """Return the heights of a polyline at some values; it is level beyond its ends.

    Args:
        values: Positions, of any shape.
        knots: ``(B,)`` ascending positions of the corners.
        heights: ``(B,)`` heights of the corners.
    """
    right = torch.bucketize(values, knots).clamp(max=len(knots) - 1)
    left = (right - 1).clamp(min=0)
    width = (knots[right] - knots[left]).clamp(min=torch.finfo(knots.dtype).tiny)
    share = ((values - knots[left]) / width).clamp(0, 1)
    return heights[left] + share * (heights[right] - heights[left])


class SplitProbabilities(NamedTuple):
    """The probabilities of predictions, divided into the predicted class and all others.

    Attributes:
        log_probs: ``(N, K, *)`` log-probabilities.
        is_predicted: ``(N, K, *)`` mask of the predicted class.
        log_others: ``(N, 1, *)`` logarithm of the summed probability of all other classes.
        log_odds: ``(N, 1, *)`` log-odds of the confidence.
        log_second_share: ``(N, 1, *)`` logarithm of the share of the second class in the others.
    """

    log_probs: Tensor
    is_predicted: Tensor
    log_others: Tensor
    log_odds: Tensor
    log_second_share: Tensor


def split_probabilities(logits: Tensor, temperature: Tensor | float) -> SplitProbabilities:
    """Return the probabilities of logits ``(N, K, *)`` at a temperature, two where K = 1."""
    gaps = gaps_to_top(logits)
    scaled = gaps / temperature
    if logits.shape[1] > 1:  # A masked class has no share of the curve's error.
        scaled = scaled.masked_fill(scaled < MASKED, -float('inf'))
    log_probs = scaled.log_softmax(dim=1)
    # A comparison, since ONNX has no scatter of booleans.
    pixel_axes = [1] * (gaps.ndim - 2)
    classes = torch.arange(gaps.shape[1], device=gaps.device).reshape(-1, *pixel_axes)
    is_predicted = classes == top_class(logits).unsqueeze(1)
    log_probs_of_others = log_probs.masked_fill(is_predicted, float('-inf'))
    # All other classes may be masked.
    lowest = torch.finfo(log_probs.dtype).min
    log_others = log_probs_of_others.logsumexp(dim=1, keepdim=True).clamp(min=lowest)
    return SplitProbabilities(
        log_probs=log_probs,
        is_predicted=is_predicted,
        log_others=log_others,
        log_odds=log_probs.amax(dim=1, keepdim=True) - log_others,
        log_second_share=log_probs_of_others.amax(dim=1, keepdim=True) - log_others,
    )
