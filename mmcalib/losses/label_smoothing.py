"""Label smoothing (LS)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mmcalib.losses.calibration_loss import CalibrationLoss
from mmcalib.losses.cross_entropy import (
    add_to_labels,
    nll,
    pick,
    subtract_highest,
    weight_by_label,
)
from mmcalib.losses.value_and_gradient import register_gradient


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


@register_gradient(label_smoothing, compilable=True)
def label_smoothing_gradient(logits, target, weight, out, *, alpha, class_weight=None) -> Tensor:
    r"""Return :func:`label_smoothing` for labels; write its weighted gradient to `out`.

    .. math:: (1 - \alpha)\, w_y (p_k - y_k) + \alpha \left( p_k - \frac{1}{K} \right)
    """
    subtract_highest(logits, out)
    label_logit = pick(out, target)
    mean_logit = out.mean(dim=1)
    total = out.exp_().sum(dim=1)
    log_total = total.log()
    label_weight = weight_by_label((1 - alpha) * weight, target, class_weight)
    uniform_weight = alpha * weight
    out.mul_(((label_weight + uniform_weight) / total).unsqueeze(1))
    out.sub_((uniform_weight / logits.shape[1]).unsqueeze(1))
    add_to_labels(out, target, -label_weight)
    rows = weight_by_label(log_total - label_logit, target, class_weight)
    return (1 - alpha) * rows + alpha * (log_total - mean_logit)


class LabelSmoothingLoss(CalibrationLoss):
    """Label smoothing for the heads of both toolboxes; see :func:`label_smoothing`.

    Without class weights, mmpretrain's ``LabelSmoothLoss`` in its mode ``'original'`` is the same.
    """

    formula = staticmethod(label_smoothing)
    loss_name = 'loss_ls'
    ranges = dict(alpha=(0.0, 1.0))
