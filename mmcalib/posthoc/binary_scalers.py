"""Curves from the log-odds of two classes to calibrated ones, of two or three parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from mmcalib.posthoc.logit_scaler import LogitReader, LogitScaler
from mmcalib.posthoc.temperature_scaler import TemperatureScaler, effective_predictions


class BinaryScaler(LogitScaler):
    """A scaling of the log-odds of class 1: a sigmoid's logit, or the difference of two logits."""

    heads = ('sigmoid',)

    def _fit(self, read: LogitReader, groups: Tensor | None) -> None:
        single = TemperatureScaler()
        single._fit(read, None)
        number = effective_predictions(read, single.temperature_, groups)
        parts = [(_odds(logits.double())[:, 0].cpu(), labels.cpu()) for logits, labels in read()]
        odds, labels = (torch.cat(part) for part in zip(*parts, strict=True))
        self._fit_odds(odds, labels, single.temperature_, number)

    def _apply(self, logits: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        scaled = self._apply_odds(_odds(logits), learned)
        return scaled if logits.shape[1] == 1 else torch.cat([-scaled / 2, scaled / 2], dim=1)

    def check_head(self, logits: Tensor) -> None:
        if logits.shape[1] > 2:
            raise ValueError(
                f'{type(self).__name__} takes logits of two classes, (N, 1) or (N, 2), got '
                f'{tuple(logits.shape)}; use a temperature'
            )

    def _fit_odds(self, odds: Tensor, labels: Tensor, temperature: float, number: float) -> None:
        """Set what is learned of ``(N,)`` log-odds, which hold `number` independent ones."""
        raise NotImplementedError

    def _apply_odds(self, odds: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        """Return scaled log-odds ``(N, 1, …)``."""
        raise NotImplementedError


class PlattScaler(BinaryScaler):
    r"""Map log-odds z of two classes to :math:`z' = az + b` by logistic regression.

    The labels 1 and 0 are taken as :math:`(N_+ + 1) / (N_+ + 2)` and :math:`1 / (N_- + 2)` with the
    numbers of effective predictions of both classes, so a and b are finite for separable logits.
    A negative a, of logits that mislead, reverses the order of predictions.

    Source: Platt, Probabilistic Outputs for Support Vector Machines, 1999.

    Attributes:
        scale_: a.
        shift_: b.
    """

    learned = ('scale', 'shift')
    least_predictions = 2

    def _fit_odds(self, odds: Tensor, labels: Tensor, temperature: float, number: float) -> None:
        _check_both(labels)
        positive = labels.double().mean().item() * number
        most, least = (positive + 1) / (positive + 2), 1 / (number - positive + 2)
        targets = torch.where(labels == 1, most, least).double()
        features = torch.stack([odds / temperature, torch.ones_like(odds)], dim=1)
        scale, shift = _regression(features, targets, [1.0, 0.0], [(None, None)] * 2)
        self.scale_, self.shift_ = scale / temperature, shift

    def _apply_odds(self, odds: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        return odds * learned['scale'] + learned['shift']


class BetaScaler(BinaryScaler):
    r"""Map the probability p of class 1 to log-odds :math:`a \log p - b \log(1 - p) + c`.

    It is logistic regression with :math:`a, b \ge 0`, so the order of predictions stays. Platt's
    map is a = b; other ones bend it at one end.

    Source: Kull, Silva Filho and Flach, Beta Calibration, 2017, of three parameters. There a
    negative a or b is set to 0 and the others fitted anew; here they are fitted under the bounds.

    Attributes:
        rise_: a.
        fall_: b.
        shift_: c.
    """

    learned = ('rise', 'fall', 'shift')
    least_predictions = 3

    def _fit_odds(self, odds: Tensor, labels: Tensor, temperature: float, number: float) -> None:
        _check_both(labels)
        sides = [-_softplus(-odds) / temperature, _softplus(odds) / temperature]
        features = torch.stack([*sides, torch.ones_like(odds)], dim=1)
        bounds = [(0, None), (0, None), (None, None)]
        rise, fall, shift = _regression(features, labels.double(), [1.0, 1.0, 0.0], bounds)
        self.rise_, self.fall_, self.shift_ = rise / temperature, fall / temperature, shift

    def _apply_odds(self, odds: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
        # log p as -softplus(-z), since log(sigmoid(z)) of an ONNX runtime loses the digits of p.
        sides = learned['fall'] * _softplus(odds) - learned['rise'] * _softplus(-odds)
        return sides + learned['shift']


def _softplus(odds: Tensor) -> Tensor:
    """Return log(1 + e^z), for which ONNX runtimes lack their own operator in double precision."""
    return torch.stack([torch.zeros_like(odds), odds]).logsumexp(dim=0)


def _odds(logits: Tensor) -> Tensor:
    """Return the log-odds ``(N, 1, …)`` of class 1."""
    return logits if logits.shape[1] == 1 else logits[:, 1:] - logits[:, :1]


def _check_both(labels: Tensor) -> None:
    found = labels.unique().tolist()
    if len(found) < 2:
        raise ValueError(
            f'all labels have class {found[0]}: a shift would learn to predict nothing else. Use '
            'a temperature, or data with both classes'
        )


def _regression(
    features: Tensor, targets: Tensor, start: Sequence[float], bounds: Sequence[tuple]
) -> list[float]:
    """Return the weights of the logistic regression of targets in [0, 1] on ``(N, F)`` features."""
    from scipy.optimize import minimize  # takes a second to import, and few need it
    from scipy.special import expit

    x, t = features.numpy(), targets.numpy()

    def objective(weights: np.ndarray) -> tuple[float, np.ndarray]:
        odds = x @ weights
        return (np.logaddexp(0, odds) - t * odds).mean(), (expit(odds) - t) @ x / len(t)

    result = minimize(
        objective,
        start,
        jac=True,
        method='L-BFGS-B',
        bounds=bounds,
        options=dict(maxiter=1000, maxfun=2000, ftol=1e-14, gtol=1e-9),
    )
    return result.x.tolist()
