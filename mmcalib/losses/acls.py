"""Adaptive and conditional label smoothing (ACLS)."""

import torch
from torch import Tensor

from mmcalib.losses.calibration_loss import CalibrationLoss
from mmcalib.losses.cross_entropy import cross_entropy


def acls(
    logits: Tensor,
    target: Tensor,
    *,
    margin: float = 10.0,
    alpha: float = 0.1,
    alpha_others: float = 0.01,
    class_weight: Tensor | None = None,
) -> Tensor:
    r"""Cross-entropy plus squared penalties on the top logit and on distances from it, per row.

    .. math:: -\log p_y + \alpha \max(0, l_{\hat y} - m)^2 +
        \frac{\alpha'}{K - 1} \sum_{k \ne \hat y} \max(0, l_{\hat y} - l_k - m)^2

    where :math:`\hat y` is the class of the largest logit, which is a constant to the gradient in
    the last term. So the largest logit is smoothed while it is above the margin itself, and the
    others while they are further below it: a constant added to all logits changes the loss.

    Source: Park et al., "ACLS: Adaptive and Conditional Label Smoothing for Network Calibration",
    ICCV 2023, as its authors' published loss computes it, written anew from that formula. It has
    not been compared with the equations of the paper, which may differ.

    Args:
        logits: ``(N, K, *)``. A class masked with -inf has no part in the sum.
        target: ``(N, *)`` int64 labels or ``(N, K, *)`` probabilities.
        margin: m, in logits. The published loss uses 10, and 6 for some data sets.
        alpha: :math:`\alpha`, weight of the predicted class; the published loss uses 0.1 · 1.
        alpha_others: :math:`\alpha'`, weight of the others; the published loss uses 0.1 · 0.1. With
            both 0 it is cross-entropy.
        class_weight: ``(K,)`` weights of the cross-entropy term alone.

    Returns:
        ``(N, *)``, in nats (the penalties in squared logits).

    Example:
        >>> acls(torch.tensor([[12., 0., 0.]]), torch.tensor([0]), margin=10.0)
        tensor([0.4400])
    """
    highest = logits.amax(dim=1)
    penalty_predicted = torch.relu(highest - margin).square()
    # The predicted class itself is at a distance of 0, which is within any margin.
    distance = torch.where(logits > float('-inf'), highest.detach().unsqueeze(1) - logits, 0)
    penalty_others = torch.relu(distance - margin).square().sum(dim=1) / (logits.shape[1] - 1)
    rows = cross_entropy(logits, target, class_weight)
    return rows + alpha * penalty_predicted + alpha_others * penalty_others


class ACLSLoss(CalibrationLoss):
    """Adaptive and conditional label smoothing for heads of both toolboxes; see :func:`acls`."""

    formula = staticmethod(acls)
    loss_name = 'loss_acls'
