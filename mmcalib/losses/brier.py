"""Brier loss: the squared error of the probabilities."""

import torch.nn.functional as F
from torch import Tensor

from mmcalib.losses.base.calibration_loss import CalibrationLoss
from mmcalib.losses.base.cross_entropy import per_class, shares_of
from mmcalib.losses.base.models_registry import MODELS


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
    shares = shares_of(target, logits)
    rows = (F.softmax(logits, dim=1) - shares).square().sum(dim=1)
    if class_weight is None:
        return rows
    return rows * (shares * per_class(class_weight, logits)).sum(dim=1)


@MODELS.register_module()
class BrierLoss(CalibrationLoss):
    """Brier loss for mmpretrain and mmseg heads; see :func:`brier`.

    Args:
        loss_name: See :class:`CalibrationLoss`, which also takes ``class_weight``,
            ``ignore_index``, ``reduction`` and ``loss_weight``.
    """

    formula = staticmethod(brier)

    def __init__(self, *, loss_name: str = 'loss_brier', **common) -> None:
        super().__init__(loss_name=loss_name, **common)

    def options(self) -> dict:
        return {}
