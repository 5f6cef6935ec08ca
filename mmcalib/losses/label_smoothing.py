"""Label smoothing (LS)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mmcalib.losses.calibration_loss import CalibrationLoss
from mmcalib.losses.cross_entropy import nll


def label_smoothing(
    logits: Tensor, target: Tensor, *, alpha: float = 0.05, class_weight: Tensor | None = None
) -> Tensor:
    r"""Cross-entropy against targets mixed with the uniform distribution, per row.

    .. math:: -\sum_k \left( (1 - \alpha)\, y_k + \frac{\alpha}{K} \right) \log p_k

    Source: Eq. 3 of the paper and its published code; both smooth over all K classes, the true one
    too. ``F.cross_entropy(label_smoothing=alpha)`` is the same without class weights, which it
    applies to the uniform part as well.

    Args:
        logits: ``(N, K, *)``. A class masked with -inf has no part in the sum.
        target: ``(N, *)`` int64 labels or ``(N, K, *)`` probabilities.
        alpha: Share of the uniform distribution, in [0, 1]; the paper uses 0.05, and 0 leaves
            cross-entropy.
        class_weight: ``(K,)`` weights of the :math:`y_k` part alone.

    Returns:
        ``(N, *)``, in nats.

    Example:
        >>> label_smoothing(torch.tensor([[2., 0.]]), torch.tensor([0]), alpha=0.1)
        tensor([0.2269])
    """
    log_probs = F.log_softmax(logits, dim=1)
    uniform = -torch.where(log_probs > float('-inf'), log_probs, 0).mean(dim=1)
    return (1 - alpha) * nll(log_probs, target, class_weight) + alpha * uniform


class LabelSmoothingLoss(CalibrationLoss):
    """Label smoothing for the heads of both toolboxes; see :func:`label_smoothing`.

    Without class weights, mmpretrain's ``LabelSmoothLoss`` in its mode ``'original'`` is the same.
    """

    formula = staticmethod(label_smoothing)
    loss_name = 'loss_ls'
    ranges = dict(alpha=(0.0, 1.0))
