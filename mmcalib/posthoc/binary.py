"""Curves from the log-odds of two classes to calibrated ones, of two or three parameters."""

from __future__ import annotations

import torch
from torch import Tensor

from mmcalib.posthoc.affine import AffineScaler
from mmcalib.posthoc.logits import log_odds
from mmcalib.posthoc.scaler import LogitScaler


class PlattScaler(AffineScaler):
    r"""Map log-odds z of two classes to :math:`z' = az + b` by logistic regression.

    The labels 1 and 0 are taken as :math:`(N_+ + 1) / (N_+ + 2)` and :math:`1 / (N_- + 2)` with the
    numbers of effective predictions of both classes, so a and b are finite for separable logits.
    A negative a, of logits that mislead or of few labels of a class, reverses the order of
    predictions, which ``calibrate`` refuses.

    Source: Platt, Probabilistic Outputs for Support Vector Machines, 1999.

    Attributes:
        scale_: a.
        shift_: b.
    """

    method = 'platt'
    per_class = True
    takes_masked_classes = False
    learned = {'scale': 0, 'shift': 0}
    heads = ('sigmoid',)

    def apply(self, logits: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        scaled_odds = log_odds(logits) * scale + shift
        return logits_from_odds(scaled_odds, num_logits=logits.shape[1])

    def targets(self, labels: Tensor, num_effective: float) -> Tensor:
        num_positive = labels.double().mean().item() * num_effective
        num_negative = num_effective - num_positive
        positive_target = (num_positive + 1) / (num_positive + 2)
        negative_target = 1 / (num_negative + 2)
        target = torch.where(labels == 1, positive_target, negative_target).double()
        return torch.stack([1 - target, target], dim=1)


class BetaScaler(LogitScaler):
    r"""Map the probability p of class 1 to log-odds :math:`a \log p - b \log(1 - p) + c`.

    It is logistic regression with :math:`a, b \ge 0`, so the order of predictions stays. It is
    Platt's map if a = b, and bent at one end otherwise.

    Source: Kull, Silva Filho and Flach, Beta Calibration, 2017, of three parameters. There a
    negative a or b is set to 0 and the others fitted anew; here they are fitted under the bounds.

    Attributes:
        rise_: a.
        fall_: b.
        shift_: c.
    """

    method = 'beta'
    takes_masked_classes = False
    learned = {'rise': 0, 'fall': 0, 'shift': 0}
    heads = ('sigmoid',)
    bounds = {'rise': (0.0, float('inf')), 'fall': (0.0, float('inf'))}

    def apply(self, logits: Tensor, rise: Tensor, fall: Tensor, shift: Tensor) -> Tensor:
        odds = log_odds(logits)
        # log p is -softplus(-z), since log(sigmoid(z)) of an ONNX runtime loses the digits of p.
        scaled_odds = fall * softplus(odds) - rise * softplus(-odds) + shift
        return logits_from_odds(scaled_odds, num_logits=logits.shape[1])


def softplus(odds: Tensor) -> Tensor:
    """Return log(1 + e^z), for which ONNX runtimes lack their own operator in double precision."""
    return torch.stack([torch.zeros_like(odds), odds]).logsumexp(dim=0)


def logits_from_odds(odds: Tensor, *, num_logits: int) -> Tensor:
    """Return log-odds ``(N, 1, *)`` as the logits of a sigmoid, or of a softmax of two classes."""
    if num_logits == 1:
        return odds
    return torch.cat([-odds / 2, odds / 2], dim=1)
