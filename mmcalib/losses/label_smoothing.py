"""Label smoothing (LS)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mmcalib.losses.base.calibration_loss import CalibrationLoss
from mmcalib.losses.base.cross_entropy import nll
from mmcalib.losses.base.models_registry import MODELS


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
        alpha: Share of the uniform distribution, in [0, 1]; 0 leaves cross-entropy.
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


@MODELS.register_module()
class LabelSmoothingLoss(CalibrationLoss):
    """Label smoothing for mmpretrain and mmseg heads; see :func:`label_smoothing`.

    Without class weights, mmpretrain's ``LabelSmoothLoss`` in its mode ``'original'`` is the same.

    Args:
        alpha: Share of the uniform distribution; the paper uses 0.05.
        loss_name: See :class:`CalibrationLoss`, which also takes ``class_weight``,
            ``ignore_index``, ``reduction`` and ``loss_weight``.

    Raises:
        ValueError: If ``alpha`` is outside [0, 1].
    """

    formula = staticmethod(label_smoothing)
    ranges = dict(alpha=(0.0, 1.0))

    def __init__(self, *, alpha: float = 0.05, loss_name: str = 'loss_ls', **common) -> None:
        super().__init__(loss_name=loss_name, **common)
        self.set_parameters(alpha=alpha)

    def options(self) -> dict:
        return dict(alpha=self.alpha)
