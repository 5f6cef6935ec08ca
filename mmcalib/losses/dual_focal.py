"""Dual focal loss."""

import torch
from torch import Tensor

from mmcalib.losses.calibration_loss import CalibrationLoss
from mmcalib.losses.cross_entropy import cross_entropy, of_label, pick, power


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
    lower = constant.masked_fill(constant >= pick(constant, target).unsqueeze(1), float('-inf'))
    highest, ranked_next = lower.max(dim=1)
    true, below = (-cross_entropy(logits, label) for label in (target, ranked_next))
    weight = below.exp().masked_fill(highest == float('-inf'), 0) - torch.expm1(true)
    return of_label(-power(weight, gamma, detach_weight) * true, target, class_weight)


class DualFocalLoss(CalibrationLoss):
    """Dual focal loss for the heads of both toolboxes; see :func:`dual_focal`."""

    formula = staticmethod(dual_focal)
    loss_name = 'loss_dual_focal'
    soft_targets = False
