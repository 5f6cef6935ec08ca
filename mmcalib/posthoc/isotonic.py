"""A rising curve from the model's confidence to how often it is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmcalib.posthoc.scaler import (
    LogitScaler,
    Rows,
    best_temperature,
    gaps_to_top,
    odds_of,
    of_given_head,
    rows_of,
)

# How far a confidence stays above what would make another class as likely.
AHEAD = 1e-6


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

    def _fit(self, rows: Rows) -> dict[str, Any]:
        temperature = best_temperature(rows)
        parts = (split(z.double(), temperature) for (z,) in rows.parts())
        odds = torch.cat([odds[:, 0] for _, _, _, odds, _ in parts])
        return self._curve(rows, temperature, odds, rows.predicted != rows.y)

    def _curve(self, rows: Rows, temperature: float, odds: Tensor, wrong: Tensor) -> dict[str, Any]:
        """Return what is learned of log-odds of confidences and of which are wrong."""
        from sklearn.isotonic import IsotonicRegression  # takes a second to import, and few need it

        self.num_effective_ = rows.weights(1 / temperature).sum().item()
        x, wrong = odds.cpu().numpy(), wrong.double().cpu().numpy()
        fitted = IsotonicRegression(increasing=False).fit_transform(x, wrong)
        levels, index, counts = np.unique(fitted, return_inverse=True, return_counts=True)
        knots = torch.from_numpy(np.bincount(index, weights=x) / counts).flip(0)
        least = 1 / (self.num_effective_ + 2)
        errors = torch.from_numpy(levels).flip(0).clamp(least, 1 - least)
        return {'temperature': temperature, 'knots': knots, 'errors': errors}

    def fit_confidence(self, conf: Any, correct: Any, groups: Any = None) -> LogitScaler:
        """Learn to map a bare confidence to how often it is right, by the curve alone."""
        rows = rows_of(odds_of(conf), correct, groups)
        self.num_predictions_, self.num_logits_ = rows.z.shape
        return self._take(self._curve(rows, 1.0, rows.z[:, 0], rows.y == 0))

    def _of_odds(self, odds: Tensor) -> Tensor:
        return 1 - interpolate(odds[:, 0], self.tensors['knots'], self.tensors['errors'])

    def apply(self, logits: Tensor, temperature: Tensor, knots: Tensor, errors: Tensor) -> Tensor:
        log_probs, predicted, others, odds, second = split(logits, temperature)
        wrong = torch.minimum(interpolate(odds, knots, errors), (-second).sigmoid() - AHEAD)
        scaled = torch.where(predicted, (-wrong).log1p(), wrong.log() + log_probs - others)
        return of_given_head(scaled, logits)


def interpolate(values: Tensor, knots: Tensor, heights: Tensor) -> Tensor:
    """Return the line through ascending knots ``(B,)`` of these heights, level beyond the ends."""
    right = torch.bucketize(values, knots).clamp(max=len(knots) - 1)
    left = (right - 1).clamp(min=0)
    width = (knots[right] - knots[left]).clamp(min=torch.finfo(knots.dtype).tiny)
    share = ((values - knots[left]) / width).clamp(0, 1)
    return heights[left] + share * (heights[right] - heights[left])


def split(logits: Tensor, temperature: Tensor | float) -> tuple[Tensor, ...]:
    """Return log-probabilities ``(N, K, *)``, which is the predicted class, the logarithm of the
    others' sum, the log-odds of the confidence, and the logarithm of the second one's share of the
    others.
    """
    gaps, best = gaps_to_top(logits)
    log_probs = (gaps / temperature).log_softmax(dim=1)
    # ONNX has no scatter of booleans.
    classes = torch.arange(gaps.shape[1], device=gaps.device).reshape(-1, *[1] * (gaps.ndim - 2))
    predicted = classes == best.unsqueeze(1)
    rest = log_probs.masked_fill(predicted, float('-inf'))
    others = rest.logsumexp(dim=1, keepdim=True)
    odds = log_probs.amax(dim=1, keepdim=True) - others
    return log_probs, predicted, others, odds, rest.amax(dim=1, keepdim=True) - others
