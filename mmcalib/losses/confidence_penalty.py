"""Explicit confidence penalty (ECP)."""

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from mmcalib.losses.calibration_loss import (
    CalibrationLoss,
    check_at_least_zero,
    check_class_reduction,
)
from mmcalib.losses.cross_entropy import cross_entropy, log_sum_exp


def confidence_penalty(
    logits: Tensor,
    target: Tensor,
    *,
    alpha: float = 0.1,
    class_reduction: str = 'mean',
    class_weight: Tensor | None = None,
) -> Tensor:
    r"""Cross-entropy less the entropy of the prediction, per row.

    .. math:: -\log p_y - \alpha \cdot \frac{1}{K} H(p), \qquad H(p) = -\sum_k p_k \log p_k

    Source: the ECP baseline of the paper (Pereyra et al., 2017). The text has H without 1/K; the
    published code averages over samples and classes alike, and the published numbers came from
    that, so the mean is the default (``class_reduction='sum'`` is the text's).

    Args:
        logits: ``(N, K, *)``.
        target: ``(N, *)`` int64 labels or ``(N, K, *)`` probabilities.
        alpha: Weight of the entropy; 0 leaves cross-entropy.
        class_reduction: ``'mean'`` or ``'sum'`` over the classes.
        class_weight: ``(K,)`` weights of the cross-entropy term alone.

    Returns:
        ``(N, *)``, in nats.

    Example:
        >>> confidence_penalty(torch.tensor([[0., 0.]]), torch.tensor([0]), alpha=1.0)
        tensor([0.3466])
    """
    if torch.compiler.is_compiling():
        log_probs = logits - log_sum_exp(logits).unsqueeze(1)
    else:
        log_probs = F.log_softmax(logits, dim=1)
    negative_entropy = log_probs.exp() * log_probs
    penalty = (
        negative_entropy.mean(dim=1) if class_reduction == 'mean' else negative_entropy.sum(dim=1)
    )
    return cross_entropy(logits, target, class_weight) + alpha * penalty


@MODELS.register_module()
class ConfidencePenaltyLoss(CalibrationLoss):
    """Explicit confidence penalty as a loss of both toolboxes; see :func:`confidence_penalty`.

    Args:
        alpha: Weight of the entropy; the paper takes 0.1.
        class_reduction: ``'mean'`` over classes as in the published code, or ``'sum'`` as in the
            text.
        loss_name: See :class:`CalibrationLoss`, which also takes ``class_weight``,
            ``ignore_index``, ``reduction`` and ``loss_weight``.

    Raises:
        ValueError: If ``alpha`` is below 0, or ``class_reduction`` is not among its choices.
    """

    formula = staticmethod(confidence_penalty)

    def __init__(
        self,
        *,
        alpha: float = 0.1,
        class_reduction: str = 'mean',
        loss_name: str = 'loss_ecp',
        **common,
    ) -> None:
        super().__init__(loss_name=loss_name, **common)
        self.alpha = check_at_least_zero('alpha', alpha)
        self.class_reduction = check_class_reduction(class_reduction)

    def options(self) -> dict:
        return dict(alpha=self.alpha, class_reduction=self.class_reduction)
