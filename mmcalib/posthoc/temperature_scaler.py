"""One temperature for all logits."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mmcalib.checks import check_choice
from mmcalib.metrics.counts import bin_of, table_of
from mmcalib.metrics.errors import calibration_error
from mmcalib.posthoc.affine_scaler import AffineScaler, LogitMap
from mmcalib.posthoc.effective_number import effective_number, group_sums
from mmcalib.posthoc.logit_scaler import (
    LogitReader,
    check_arrays,
    in_chunks,
    with_other_class,
)

# No network needs a temperature beyond these; separable logits would drive it to 0.
BOUNDS = (0.01, 100.0)
CRITERIA = ('nll', 'ece-grid')
# The paper's grid.
GRID = tuple(k / 10 for k in range(1, 101))
GRID_BINS = 15

# The same bounds in β = 1/T, in which the NLL is convex.
_LOWEST_BETA, _HIGHEST_BETA = 1 / BOUNDS[1], 1 / BOUNDS[0]


class TemperatureScaler(AffineScaler):
    r"""Divide all logits by one temperature T, which changes no prediction.

    By default T minimises the negative log-likelihood, which is convex in 1/T; the minimum is found
    by safeguarded Newton steps. With ``criterion='ece-grid'`` T is the first of 0.1, 0.2, … 10.0
    with the lowest ECE over 15 bins, as the paper chose it (Table "pre- and post-temperature
    scaling" of its appendix).

    Source: Guo et al., On Calibration of Modern Neural Networks, 2017.

    Args:
        criterion: ``'nll'`` or ``'ece-grid'``.

    Attributes:
        temperature_: T, within [0.01, 100].
        at_bound_: Whether the minimum lies beyond these bounds, as for separable logits.

    Raises:
        ValueError: If the criterion is unknown.
    """

    learned = ('temperature',)
    keeps_argmax = True

    def __init__(self, *, criterion: str = 'nll') -> None:
        self.criterion = check_choice('criterion', criterion, CRITERIA)

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
        self._check_fitted()
        logits, labels, groups = check_arrays(logits, labels, groups)
        curvature, slopes = 0.0, []
        for z, y in in_chunks(logits, labels):
            slope, curve = slope_and_curvature(z, y, 1 / self.temperature_)
            slopes.append(slope)
            curvature += curve.sum().item()
        slopes = torch.cat(slopes)
        if groups is not None:
            slopes = group_sums(slopes, groups)
        if self.at_bound_ or len(slopes) < 2 or curvature == 0:
            return float('nan')
        return (slopes.square().sum().sqrt() / curvature * self.temperature_**2).item()

    def _map(self, learned: Mapping[str, Tensor]) -> LogitMap:
        return LogitMap(1 / learned['temperature'], None)

    def _fit(self, read: LogitReader, groups: Tensor | None) -> None:
        if self.criterion == 'ece-grid':
            self._choose_from_grid(read)
            return
        # The slope of the NLL is negative below the minimum and positive above.
        betas = torch.logspace(-2, 2, 9, dtype=torch.float64).tolist()
        slopes = [_mean_slope(read, beta) for beta in betas]
        if slopes[0] == (0, 0):
            raise ValueError('the logits of each row are all equal: no temperature changes them')
        above = next((i for i, (slope, _) in enumerate(slopes) if slope >= 0), None)
        if above == 0:
            self._take(_LOWEST_BETA)
        elif above is None:
            self._take(_HIGHEST_BETA)
        else:
            low, high = betas[above - 1], betas[above]
            middle = (low * high) ** 0.5
            self._take(_newton(read, middle, low, high, tolerance=1e-10, max_passes=100))

    def _take(self, beta: float) -> None:
        self.temperature_, self.at_bound_ = 1 / beta, beta in (_LOWEST_BETA, _HIGHEST_BETA)
        if self.at_bound_:
            why = (
                'all predictions are correct, so the split does not limit the confidence'
                if beta > 1
                else 'the logits carry almost no information about the labels'
            )
            warnings.warn(
                f'the temperature reached its bound of {self.temperature_:.4g}: {why}', stacklevel=4
            )

    def _choose_from_grid(self, read: LogitReader) -> None:
        tables = torch.zeros(len(GRID), 3, GRID_BINS, dtype=torch.float64)
        for logits, labels in read():
            logits = with_other_class(logits.double())
            # Differences from the highest logit keep their digits.
            logits = logits - logits.amax(dim=1, keepdim=True)
            correct = logits.argmax(dim=1) == labels.to(logits.device)
            for table, temperature in zip(tables, GRID, strict=True):
                conf = (-(logits / temperature).logsumexp(dim=1)).exp().clamp(max=1)
                index = bin_of(conf, GRID_BINS)
                table += table_of(index, conf, correct, GRID_BINS).cpu()
        errors = calibration_error(tables).tolist()
        self.temperature_ = GRID[errors.index(min(errors))]
        self.at_bound_ = self.temperature_ in (GRID[0], GRID[-1])
        if self.at_bound_:
            warnings.warn(
                f'the temperature with the lowest ECE is the last of the grid, {self.temperature_}',
                stacklevel=4,
            )


def effective_predictions(read: LogitReader, temperature: float, groups: Tensor | None) -> float:
    """Return how many independent predictions would determine the temperature as well.

    Args:
        read: Yields logits ``(M, K)`` and labels ``(M,)``.
        temperature: The one of the least NLL.
        groups: ``(N,)`` for all rows in the order of reading, None if all are independent.
    """
    slopes = [slope_and_curvature(z, y, 1 / temperature)[0].cpu() for z, y in read()]
    return effective_number(torch.cat(slopes), groups)


def _newton(
    read: LogitReader, beta: float, low: float, high: float, *, tolerance: float, max_passes: int
) -> float:
    """Return the 1/T of the least NLL between `low` and `high`, starting from `beta`."""
    for _ in range(max_passes):
        slope, curvature = _mean_slope(read, beta)
        low, high = (beta, high) if slope < 0 else (low, beta)
        step = beta - slope / curvature if curvature > 0 else high if slope < 0 else low
        # A step may not leave the bracket, nor go far where the curvature vanishes.
        new = min(max(step, low, beta / 4), high, 4 * beta)
        if new != step and new in (low, high) and new not in (_LOWEST_BETA, _HIGHEST_BETA):
            new = (low * high) ** 0.5
        change, beta = abs(new / beta - 1), new
        if change < tolerance:
            break
    return beta


def _mean_slope(read: LogitReader, beta: float) -> tuple[float, float]:
    """Return the first and second derivative of the mean NLL in 1/T."""
    total, count = torch.zeros(2, dtype=torch.float64), 0
    for logits, labels in read():
        parts = slope_and_curvature(logits, labels, beta)
        total += torch.stack([part.sum() for part in parts]).cpu()
        count += len(labels)
    slope, curvature = (total / count).tolist()
    return slope, curvature


def slope_and_curvature(
    logits: Tensor, labels: Tensor, beta: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Return the derivatives ``(M,)`` of each row's NLL in 1/T, at 1/T = `beta`.

    They are the mean of the logits under the softmax less the true class's logit, and the variance
    of the logits under the softmax.

    Args:
        logits: ``(M, K)``.
        labels: ``(M,)``.
        beta: Of all rows, or ``(M,)``.
    """
    logits = with_other_class(logits.double())
    # Differences from the highest logit keep their digits.
    logits = logits - logits.amax(dim=1, keepdim=True)
    scaled = logits * (beta[:, None] if isinstance(beta, Tensor) else beta)
    probs = scaled.softmax(dim=1)
    mean = (probs * logits).sum(dim=1)
    own = logits.gather(1, labels.to(logits.device)[:, None])[:, 0]
    return mean - own, (probs * (logits - mean[:, None]).square()).sum(dim=1)
