"""Focal loss on softmax probabilities (FL)."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from mmcalib.losses.calibration_loss import CalibrationLoss
from mmcalib.losses.cross_entropy import (
    power,
    weighted_cross_entropy,
    weighted_cross_entropy_gradient,
)
from mmcalib.losses.value_and_gradient import register_gradient
from mmcalib.options import check_number


def softmax_focal(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float | Sequence[tuple[float, float]] = 3.0,
    class_weight: Tensor | None = None,
) -> Tensor:
    r"""Cross-entropy with less weight on confident predictions, per row.

    .. math:: -(1 - p_y)^\gamma \log p_y

    With a schedule, :math:`\gamma` depends on :math:`p_y` (a constant to the gradient, as in the
    published code): ``((0.2, 5.0), (1.0, 3.0))`` is 5 for :math:`p_y` in [0, 0.2), else 3. Soft
    targets weight the terms of all classes. The toolboxes' own ``FocalLoss`` is a sigmoid one.

    Source: the FL and FLSD baselines of the paper (Mukhoti et al., 2020); see its Eq. 5.

    Args:
        logits: ``(N, K, *)``.
        target: ``(N, *)`` int64 labels or ``(N, K, *)`` probabilities.
        gamma: :math:`\gamma`; the paper uses 3, and 0 leaves cross-entropy. Or pairs of an upper
            bound of :math:`p_y` (exclusive but for the last) and the :math:`\gamma` below it.
        class_weight: ``(K,)`` weights of the classes.

    Returns:
        ``(N, *)``, in nats.

    Example:
        >>> softmax_focal(torch.tensor([[0., 0.]]), torch.tensor([0]), gamma=1.0)
        tensor([0.3466])
    """
    factor = functools.partial(_focal_factor, gamma)
    return weighted_cross_entropy(logits, target, factor, class_weight)


@register_gradient(softmax_focal)
def softmax_focal_gradient(logits, target, weight, out, *, gamma, class_weight=None) -> Tensor:
    """Return :func:`softmax_focal` for labels; write its weighted gradient to `out`."""
    factor = functools.partial(_focal_factor, gamma)
    return weighted_cross_entropy_gradient(logits, target, weight, out, factor, class_weight)


def _focal_factor(gamma: float | Sequence[tuple[float, float]], log_probs: Tensor) -> Tensor:
    """Return the factor of each term of cross-entropy."""
    if isinstance(gamma, Sequence):
        gamma = _scheduled_gamma(log_probs.detach().exp(), gamma)
    return power(-torch.expm1(log_probs), gamma)


def _scheduled_gamma(probs: Tensor, schedule: Sequence[tuple[float, float]]) -> Tensor:
    """Return the gamma of each probability."""
    _, last_gamma = schedule[-1]
    gamma = torch.full_like(probs, last_gamma)
    for bound, gamma_below in reversed(schedule[:-1]):
        gamma = gamma.masked_fill(probs < bound, gamma_below)
    return gamma


def sample_dependent_focal(
    logits: Tensor,
    target: Tensor,
    *,
    schedule: Sequence[tuple[float, float]] = ((0.2, 5.0), (1.0, 3.0)),
    class_weight: Tensor | None = None,
) -> Tensor:
    r"""Return :func:`softmax_focal` with a :math:`\gamma` for each range of :math:`p_y` (FLSD).

    Args:
        logits: ``(N, K, *)``.
        target: ``(N, *)`` int64 labels or ``(N, K, *)`` probabilities.
        schedule: Pairs of an upper bound of :math:`p_y` and the :math:`\gamma` below it, ascending
            up to 1. The paper's is the default: 5 in [0, 0.2), 3 in [0.2, 1).
        class_weight: ``(K,)`` weights of the classes.

    Returns:
        ``(N, *)``, in nats.
    """
    return softmax_focal(logits, target, gamma=schedule, class_weight=class_weight)


@register_gradient(sample_dependent_focal)
def sample_dependent_focal_gradient(
    logits, target, weight, out, *, schedule, class_weight=None
) -> Tensor:
    """Return :func:`sample_dependent_focal` for labels; write its weighted gradient to `out`."""
    return softmax_focal_gradient(
        logits, target, weight, out, gamma=schedule, class_weight=class_weight
    )


class SoftmaxFocalLoss(CalibrationLoss):
    """Softmax focal loss for the heads of both toolboxes; see :func:`softmax_focal`."""

    formula = staticmethod(softmax_focal)
    loss_name = 'loss_fl'


class SampleDependentFocalLoss(CalibrationLoss):
    """FLSD, a focal loss for the heads of both toolboxes; see :func:`sample_dependent_focal`."""

    formula = staticmethod(sample_dependent_focal)
    loss_name = 'loss_flsd'

    def check_parameter(self, name: str, value: object) -> object:
        """Return a schedule as a tuple of pairs, or raise an error if it is none."""
        bounds = [0]
        schedule = []
        for bound, gamma in value:
            bounds.append(check_number('a bound of schedule', bound))
            schedule.append((bound, check_number('a gamma of schedule', gamma)))
        if sorted(set(bounds)) != bounds or bounds[-1] != 1:
            raise ValueError(f'the bounds of schedule must ascend to 1, got {value}')
        return tuple(schedule)
