"""Margin-based label smoothing (MbLS), the paper's loss."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mmcalib.checks import check_choice
from mmcalib.losses.base.calibration_loss import CLASS_REDUCTIONS, CalibrationLoss
from mmcalib.losses.base.cross_entropy import cross_entropy, nll_and_gradient
from mmcalib.losses.base.models_registry import MODELS


def margin_penalty(logits: Tensor, margin: float, class_reduction: str = 'mean') -> Tensor:
    r"""Penalise the logit distances that exceed a margin.

    .. math:: \frac{1}{K} \sum_k \max(0,\; \max_j l_j - l_k - m)

    Args:
        logits: ``(N, K, *)``. A class masked with -inf has no part in the sum.
        margin: m, in logits.
        class_reduction: ``'mean'`` over the K classes, or ``'sum'`` without the 1/K.

    Returns:
        ``(N, *)``, in logits. The gradient is zero wherever a distance is within the margin.
    """
    excess = torch.relu(logits.amax(dim=1, keepdim=True) - logits - margin)
    total = torch.where(logits > float('-inf'), excess, 0).sum(dim=1)
    return total / logits.shape[1] if class_reduction == 'mean' else total


def margin_label_smoothing(
    logits: Tensor,
    target: Tensor,
    *,
    margin: float = 10.0,
    alpha: float = 0.1,
    class_reduction: str = 'mean',
    class_weight: Tensor | None = None,
) -> Tensor:
    r"""Cross-entropy plus a linear penalty on logit distances above a margin, per row.

    .. math:: -\log p_y + \alpha \cdot \frac{1}{K} \sum_k \max(0,\; \max_j l_j - l_k - m)

    Source: Eq. 7 of the paper, whose :math:`\lambda` is ``alpha``. The paper sums over k; its
    published code takes the mean, and the published numbers came from that, so the mean is the
    default (with ``class_reduction='sum'``, ``alpha=0.1 / K`` is the same loss).

    Args:
        logits: ``(N, K, *)``.
        target: ``(N, *)`` int64 labels or ``(N, K, *)`` probabilities.
        margin: m, in logits; 0 penalises every distance.
        alpha: Weight of the penalty; 0 leaves cross-entropy.
        class_reduction: ``'mean'`` or ``'sum'`` over the classes.
        class_weight: ``(K,)`` weights of the cross-entropy term alone.

    Returns:
        ``(N, *)``, in nats (the penalty in logits).

    Example:
        >>> logits = torch.tensor([[12., 0., 0.]])
        >>> margin_label_smoothing(logits, torch.tensor([0]), margin=10.0, alpha=0.1)
        tensor([0.1333])
    """
    penalty = margin_penalty(logits, margin, class_reduction)
    return cross_entropy(logits, target, class_weight) + alpha * penalty


def margin_label_smoothing_and_gradient(
    logits: Tensor,
    target: Tensor,
    *,
    margin: float,
    alpha: float,
    class_reduction: str,
    class_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return :func:`margin_label_smoothing` of logits without -inf, and its gradient.

    Masks are floats, and in place, since boolean ones are several times slower on a CPU.
    """
    if class_reduction == 'mean':
        alpha = alpha / logits.shape[1]
    log_probs = F.log_softmax(logits, dim=1)
    rows, gradient = nll_and_gradient(log_probs, target, class_weight)
    highest = logits.amax(dim=1, keepdim=True)
    excess = torch.sub(highest - margin, logits).relu_()
    rows.add_(excess.sum(dim=1), alpha=alpha)
    above = excess.sign_()
    gradient.sub_(above, alpha=alpha)
    slope = above.sum(dim=1, keepdim=True)
    return rows, add_to_largest(gradient, slope, logits, highest, memory=above, value=alpha)


def add_to_largest(
    gradient: Tensor,
    slope: Tensor,
    logits: Tensor,
    highest: Tensor,
    *,
    memory: Tensor,
    value: float = 1.0,
) -> Tensor:
    """Add the slope by the largest logit, times `value`, to a gradient in place, and return it.

    Where several are the largest, they share it, as in the gradient of amax.

    Args:
        gradient: ``(N, K, *)``.
        slope: ``(N, 1, *)``; it is overwritten.
        logits: ``(N, K, *)``.
        highest: ``(N, 1, *)``, the largest of them.
        memory: ``(N, K, *)``, to be overwritten.
        value: A factor.
    """
    top = torch.eq(logits, highest, out=memory)
    slope /= top.sum(dim=1, keepdim=True)
    return gradient.addcmul_(top, slope, value=value)


@MODELS.register_module()
class MarginLabelSmoothingLoss(CalibrationLoss):
    """Margin-based label smoothing for mmpretrain and mmseg heads.

    The formula, its source and where the published code differs are at
    :func:`margin_label_smoothing`; the call is :meth:`CalibrationLoss.forward`.

    Args:
        margin: m, in logits. The paper uses 6 for CIFAR-10 and 20 Newsgroups, 10 for Tiny-ImageNet,
            CUB and VOC, each chosen on validation data.
        alpha: Weight of the penalty. The paper uses 0.1, and 0.05 with ``margin=0``.
        class_reduction: ``'mean'`` over classes as in the published code, or ``'sum'`` as in Eq. 7.
        loss_name: See :class:`CalibrationLoss`, which also takes ``class_weight``,
            ``ignore_index``, ``reduction`` and ``loss_weight``.

    Raises:
        ValueError: If ``margin`` or ``alpha`` is below 0, or an option is not among its choices.
    """

    formula = staticmethod(margin_label_smoothing)
    by_hand = staticmethod(margin_label_smoothing_and_gradient)
    ranges = dict(margin=(0.0, float('inf')), alpha=(0.0, float('inf')))

    def __init__(
        self,
        *,
        margin: float = 10.0,
        alpha: float = 0.1,
        class_reduction: str = 'mean',
        loss_name: str = 'loss_mbls',
        **common,
    ) -> None:
        super().__init__(loss_name=loss_name, **common)
        self.set_parameters(margin=margin, alpha=alpha)
        self.class_reduction = check_choice('class_reduction', class_reduction, CLASS_REDUCTIONS)

    def options(self) -> dict:
        return dict(margin=self.margin, alpha=self.alpha, class_reduction=self.class_reduction)
