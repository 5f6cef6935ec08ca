"""Inverse focal loss."""

import functools

from torch import Tensor

from mmcalib.losses.calibration_loss import CalibrationLoss
from mmcalib.losses.cross_entropy import (
    power,
    weighted_cross_entropy,
    weighted_cross_entropy_gradient,
)
from mmcalib.losses.value_and_gradient import register_gradient


def inverse_focal(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float = 1.0,
    detach_weight: bool = False,
    class_weight: Tensor | None = None,
) -> Tensor:
    r"""Cross-entropy with more weight on confident predictions, per row.

    .. math:: -(1 + p_y)^\gamma \log p_y

    It leaves a network over-confident, which temperature scaling then mends; a focal loss does the
    opposite. Soft targets weight the terms of all classes.

    Source: Wang et al., "Rethinking Calibration of Deep Neural Networks: Do Not Be Afraid of
    Overconfidence", NeurIPS 2021; AdaFocal (NeurIPS 2022) takes it where a network is
    under-confident.

    Args:
        logits: ``(N, K, *)``.
        target: ``(N, *)`` int64 labels or ``(N, K, *)`` probabilities.
        gamma: :math:`\gamma`, chosen on validation data; 0 leaves cross-entropy.
        detach_weight: Whether the factor is a constant to the gradient; the paper's is not.
        class_weight: ``(K,)`` weights of the classes.

    Returns:
        ``(N, *)``, in nats.

    Example:
        >>> inverse_focal(torch.tensor([[0., 0.]]), torch.tensor([0]), gamma=1.0)
        tensor([1.0397])
    """
    factor = functools.partial(_inverse_focal_factor, gamma, detach_weight)
    return weighted_cross_entropy(logits, target, factor, class_weight)


@register_gradient(inverse_focal)
def inverse_focal_gradient(
    logits, target, weight, out, *, gamma, detach_weight, class_weight=None
) -> Tensor:
    """Return :func:`inverse_focal` for labels; write its weighted gradient to `out`."""
    factor = functools.partial(_inverse_focal_factor, gamma, detach_weight)
    return weighted_cross_entropy_gradient(logits, target, weight, out, factor, class_weight)


def _inverse_focal_factor(gamma: float, detach_weight: bool, log_probs: Tensor) -> Tensor:
    """Return the factor of each term of cross-entropy."""
    return power(1 + log_probs.exp(), gamma, detach_weight)


class InverseFocalLoss(CalibrationLoss):
    """Inverse focal loss for the heads of both toolboxes; see :func:`inverse_focal`."""

    formula = staticmethod(inverse_focal)
    loss_name = 'loss_inverse_focal'
