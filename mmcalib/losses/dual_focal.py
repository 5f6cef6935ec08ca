"""Dual focal loss."""

import torch
from torch import Tensor

from mmcalib.losses.calibration_loss import CalibrationLoss
from mmcalib.losses.cross_entropy import cross_entropy, pick, power, weight_by_label


def dual_focal(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float = 5.0,
    detach_weight: bool = False,
    class_weight: Tensor | None = None,
) -> Tensor:
    r"""Focal loss that also considers the class ranked after the true one, per row.

    .. math:: -(1 - p_y + p_j)^\gamma \log p_y, \qquad p_j = \max_k \{p_k : p_k < p_y\}

    Of several classes with this probability the first has the gradient.

    Source: Tao et al., "Dual Focal Loss for Calibration", ICML 2023; its published code is this,
    with :math:`p_j = 0` where the true class comes last. It takes every row of a label map,
    ignored ones too, and sums unless told otherwise.

    Args:
        logits: ``(N, K, *)``.
        target: ``(N, *)`` int64 labels.
        gamma: :math:`\gamma`, chosen on validation data; 0 leaves cross-entropy.
        detach_weight: Whether the factor is a constant to the gradient; the paper's is not.
        class_weight: ``(K,)`` weights of the classes.

    Returns:
        ``(N, *)``, in nats.

    Example:
        >>> dual_focal(torch.tensor([[0., 0.]]), torch.tensor([0]), gamma=1.0)
        tensor([0.3466])
    """
    constant = logits.detach()
    is_lower = constant < pick(constant, target).unsqueeze(1)
    next_logit, next_class = torch.where(is_lower, constant, float('-inf')).max(dim=1)
    log_prob = -cross_entropy(logits, target)
    next_prob = (-cross_entropy(logits, next_class)).exp()
    next_prob = next_prob.masked_fill(next_logit == float('-inf'), 0)
    weight = power(next_prob - torch.expm1(log_prob), gamma, detach_weight)
    return weight_by_label(-weight * log_prob, target, class_weight)


class DualFocalLoss(CalibrationLoss):
    """Dual focal loss for the heads of both toolboxes; see :func:`dual_focal`."""

    formula = staticmethod(dual_focal)
    loss_name = 'loss_dual_focal'
    soft_targets = False
