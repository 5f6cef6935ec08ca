"""Explicit confidence penalty (ECP)."""

from torch import Tensor

from mmcalib.checks import check_choice
from mmcalib.losses.base.calibration_loss import CLASS_REDUCTIONS, CalibrationLoss
from mmcalib.losses.base.cross_entropy import cross_entropy_and_entropy
from mmcalib.losses.base.models_registry import MODELS


def confidence_penalty(
    logits: Tensor,
    target: Tensor,
    *,
    alpha: float = 0.1,
    class_reduction: str = 'mean',
    class_weight: Tensor | None = None,
) -> Tensor:
    r"""Cross-entropy minus the weighted entropy of the prediction, per row.

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
    rows, entropy = cross_entropy_and_entropy(logits, target, class_weight)
    return rows - (alpha / logits.shape[1] if class_reduction == 'mean' else alpha) * entropy


@MODELS.register_module()
class ConfidencePenaltyLoss(CalibrationLoss):
    """Explicit confidence penalty for mmpretrain and mmseg heads; see :func:`confidence_penalty`.

    Args:
        alpha: Weight of the entropy; the paper uses 0.1.
        class_reduction: ``'mean'`` over classes as in the published code, or ``'sum'`` as in the
            text.
        loss_name: See :class:`CalibrationLoss`, which also takes ``class_weight``,
            ``ignore_index``, ``reduction`` and ``loss_weight``.

    Raises:
        ValueError: If ``alpha`` is below 0, or ``class_reduction`` is not among its choices.
    """

    formula = staticmethod(confidence_penalty)
    ranges = dict(alpha=(0.0, float('inf')))

    def __init__(
        self,
        *,
        alpha: float = 0.1,
        class_reduction: str = 'mean',
        loss_name: str = 'loss_ecp',
        **common,
    ) -> None:
        super().__init__(loss_name=loss_name, **common)
        self.set_parameters(alpha=alpha)
        self.class_reduction = check_choice('class_reduction', class_reduction, CLASS_REDUCTIONS)

    def options(self) -> dict:
        return dict(alpha=self.alpha, class_reduction=self.class_reduction)
