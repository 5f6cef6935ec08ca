"""Cross-entropy weighted by the Brier score (BSCE)."""

import torch.nn.functional as F
from torch import Tensor

from mmcalib.losses.calibration_loss import CalibrationLoss
from mmcalib.losses.cross_entropy import nll, power, target_probabilities


def bsce(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float = 1.0,
    norm: int = 2,
    detach_weight: bool = True,
    class_weight: Tensor | None = None,
) -> Tensor:
    r"""Cross-entropy weighted by the distance between probabilities and target, per row.

    .. math:: -\Big(\sum_k |p_k - y_k|^n\Big)^\gamma \log p_y

    With :math:`n = 2, \gamma = 1` the weight is the Brier score of the row.

    Source: Lin et al., "Uncertainty Weighted Gradients for Model Calibration", CVPR 2025: BSCE has
    the weight attached, BSCE-GRA has it detached, so that it scales the gradient of cross-entropy.
    The published code takes the power of the n-th root of this sum, so its gamma is n times ours,
    and n = 1 by default.

    Args:
        logits: ``(N, K, *)``.
        target: ``(N, *)`` int64 labels or ``(N, K, *)`` probabilities.
        gamma: :math:`\gamma`; 0 leaves cross-entropy.
        norm: n, 1 or 2.
        detach_weight: Whether the weight is a constant to the gradient: BSCE-GRA.
        class_weight: ``(K,)`` weights of the classes.

    Returns:
        ``(N, *)``, in nats.

    Example:
        >>> bsce(torch.tensor([[0., 0.]]), torch.tensor([0]))
        tensor([0.3466])
    """
    log_probs = F.log_softmax(logits, dim=1)
    difference = log_probs.exp() - target_probabilities(target, logits)
    terms = difference.abs() if norm == 1 else difference.square()
    weight = power(terms.sum(dim=1), gamma, detach_weight)
    return weight * nll(log_probs, target, class_weight)


class BSCELoss(CalibrationLoss):
    """Cross-entropy weighted by the Brier score, for heads of both toolboxes; see :func:`bsce`."""

    formula = staticmethod(bsce)
    loss_name = 'loss_bsce'
    choices = dict(norm=(1, 2))
