"""Inverse focal loss."""

import torch.nn.functional as F
from torch import Tensor

from mmcalib.losses.base.cross_entropy import cross_entropy, nll
from mmcalib.losses.base.models_registry import MODELS
from mmcalib.losses.base.weighted_cross_entropy import WeightedCrossEntropyLoss, factor_of


def inverse_focal(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float = 1.0,
    detach_weight: bool = False,
    class_weight: Tensor | None = None,
) -> Tensor:
    r"""Cross-entropy with more weight on confident predictions, per row.

    .. math:: -(1 + p_y)^\gamma \log p_y

    It leaves a network over-confident, which temperature scaling then mends; a focal loss does the
    opposite. Soft targets weight the terms of all classes.

    Source: Wang et al., "Rethinking Calibration of Deep Neural Networks: Do Not Be Afraid of
    Overconfidence", NeurIPS 2021; AdaFocal (NeurIPS 2022) takes it where a network is
    under-confident.

    Args:
        logits: ``(N, K, *)``.
        target: ``(N, *)`` int64 labels or ``(N, K, *)`` probabilities.
        gamma: :math:`\gamma`; 0 leaves cross-entropy.
        detach_weight: Whether the factor is a constant to the gradient.
        class_weight: ``(K,)`` weights of the classes.

    Returns:
        ``(N, *)``, in nats.

    Example:
        >>> inverse_focal(torch.tensor([[0., 0.]]), torch.tensor([0]), gamma=1.0)
        tensor([1.0397])
    """
    if target.is_floating_point():
        log_probs = F.log_softmax(logits, dim=1)
        factor = factor_of(1 + log_probs.exp(), gamma=gamma, detach_weight=detach_weight)
        return nll(log_probs, target * factor, class_weight)
    rows = _inverse_focal(-cross_entropy(logits, target), gamma, detach_weight)
    return rows if class_weight is None else rows * class_weight[target]


def _inverse_focal(log_probs: Tensor, gamma: float, detach_weight: bool) -> Tensor:
    factor = factor_of(1 + log_probs.exp(), gamma=gamma, detach_weight=detach_weight)
    return -factor * log_probs


@MODELS.register_module()
class InverseFocalLoss(WeightedCrossEntropyLoss):
    """Inverse focal loss for mmpretrain and mmseg heads; see :func:`inverse_focal`.

    Args:
        gamma: Exponent of the factor; choose it on validation data.
        detach_weight: Whether the gradient treats the factor as a constant; in the paper it does
            not.
        loss_name: See :class:`CalibrationLoss`, which also takes ``class_weight``,
            ``ignore_index``, ``reduction`` and ``loss_weight``.

    Raises:
        ValueError: If ``gamma`` is below 0.
    """

    formula = staticmethod(inverse_focal)

    def __init__(
        self,
        *,
        gamma: float = 1.0,
        detach_weight: bool = False,
        loss_name: str = 'loss_inverse_focal',
        **common,
    ) -> None:
        super().__init__(gamma=gamma, detach_weight=detach_weight, loss_name=loss_name, **common)
