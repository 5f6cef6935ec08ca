"""Brier loss: the squared error of the probabilities."""

import torch.nn.functional as F
from torch import Tensor

from mmcalib.losses.calibration_loss import CalibrationLoss
from mmcalib.losses.cross_entropy import per_class, target_probabilities


def brier(logits: Tensor, target: Tensor, *, class_weight: Tensor | None = None) -> Tensor:
    r"""Squared distance between the probabilities and the target, per row.

    .. math:: \sum_k (p_k - y_k)^2

    Source: Brier, 1950. As in the published code of focal loss for calibration (Mukhoti et al.,
    2020), which has it as a baseline, it is a sum over the classes, from 0 to 2.

    Args:
        logits: ``(N, K, *)``.
        target: ``(N, *)`` int64 labels or ``(N, K, *)`` probabilities.
        class_weight: ``(K,)``; a row counts :math:`\sum_k w_k y_k`.

    Returns:
        ``(N, *)``.

    Example:
        >>> brier(torch.tensor([[0., 0.]]), torch.tensor([0]))
        tensor([0.5000])
    """
    target_probs = target_probabilities(target, logits)
    rows = (F.softmax(logits, dim=1) - target_probs).square().sum(dim=1)
    if class_weight is None:
        return rows
    return rows * (target_probs * per_class(class_weight, logits)).sum(dim=1)


class BrierLoss(CalibrationLoss):
    """Brier loss for the heads of both toolboxes; see :func:`brier`."""

    formula = staticmethod(brier)
    loss_name = 'loss_brier'
