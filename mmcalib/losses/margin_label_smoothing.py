"""Margin-based label smoothing (MbLS), the paper's loss."""

import torch
from mmengine.registry import MODELS
from torch import Tensor
from torch.autograd.function import once_differentiable

from mmcalib.losses.calibration_loss import (
    CalibrationLoss,
    check_at_least_zero,
    check_class_reduction,
)
from mmcalib.losses.cross_entropy import cross_entropy


def margin_penalty(logits: Tensor, margin: float, class_reduction: str = 'mean') -> Tensor:
    r"""Penalise the logit distances that exceed a margin.

    .. math:: \frac{1}{K} \sum_k \max(0,\; \max_j l_j - l_k - m)

    Args:
        logits: ``(N, K, *)``.
        margin: m, in logits.
        class_reduction: ``'mean'`` over the K classes, or ``'sum'`` without the 1/K.

    Returns:
        ``(N, *)``, in logits. The gradient is zero wherever a distance is within the margin.
    """
    if torch.compiler.is_compiling():
        distances = logits.amax(dim=1, keepdim=True) - logits
        total = torch.relu(distances - margin).sum(dim=1)
    else:
        total = _MarginPenalty.apply(logits, margin)
    return total / logits.shape[1] if class_reduction == 'mean' else total


class _MarginPenalty(torch.autograd.Function):
    """The sum over classes: half the time of its parts under autograd, with their gradient.

    Where several logits are the largest, they share the gradient of the maximum. Masks are floats,
    and in place, since boolean ones are several times slower on a CPU.
    """

    @staticmethod
    def forward(ctx, logits, margin):
        highest = logits.amax(dim=1, keepdim=True)
        excess = torch.sub(highest - margin, logits).relu_()
        total = excess.sum(dim=1)
        ctx.save_for_backward(logits, highest, excess.sign_())
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        logits, highest, above = ctx.saved_tensors
        top = (logits - highest).sign_().add_(1)
        share = above.sum(dim=1, keepdim=True) / top.sum(dim=1, keepdim=True)
        grad = top.mul_(share).sub_(above)
        return grad.mul_(grad_output.unsqueeze(1)), None


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


@MODELS.register_module()
class MarginLabelSmoothingLoss(CalibrationLoss):
    """Margin-based label smoothing as a loss of mmpretrain and mmseg heads.

    The formula, its source and where the published code differs are at
    :func:`margin_label_smoothing`; the call is :meth:`CalibrationLoss.forward`.

    Args:
        margin: m, in logits. The paper takes 6 for CIFAR-10 and 20 Newsgroups, 10 for
            Tiny-ImageNet, CUB and VOC, each chosen on validation data.
        alpha: Weight of the penalty. The paper takes 0.1, and 0.05 with ``margin=0``.
        class_reduction: ``'mean'`` over classes as in the published code, or ``'sum'`` as in Eq. 7.
        loss_name: See :class:`CalibrationLoss`, which also takes ``class_weight``,
            ``ignore_index``, ``reduction`` and ``loss_weight``.

    Raises:
        ValueError: If ``margin`` or ``alpha`` is below 0, or an option is not among its choices.
    """

    formula = staticmethod(margin_label_smoothing)

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
        self.margin = check_at_least_zero('margin', margin)
        self.alpha = check_at_least_zero('alpha', alpha)
        self.class_reduction = check_class_reduction(class_reduction)

    def options(self) -> dict:
        return dict(margin=self.margin, alpha=self.alpha, class_reduction=self.class_reduction)
