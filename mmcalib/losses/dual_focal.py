"""Dual focal loss."""

import torch
from torch import Tensor

from mmcalib.losses.base.cross_entropy import cross_entropy, pick
from mmcalib.losses.base.models_registry import MODELS
from mmcalib.losses.base.weighted_cross_entropy import WeightedCrossEntropyLoss, factor_of


def dual_focal(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float = 5.0,
    detach_weight: bool = False,
    class_weight: Tensor | None = None,
) -> Tensor:
    r"""Focal loss that also considers the class ranked after the true one, per row.

    .. math:: -(1 - p_y + p_j)^\gamma \log p_y, \qquad p_j = \max_k \{p_k : p_k < p_y\}

    Of several classes with this probability the first has the gradient.

    Source: Tao et al., "Dual Focal Loss for Calibration", ICML 2023; its published code is this,
    with :math:`p_j = 0` where the true class comes last. It takes every row of a label map,
    ignored ones too, and sums unless told otherwise.

    Args:
        logits: ``(N, K, *)``.
        target: ``(N, *)`` int64 labels.
        gamma: :math:`\gamma`; 0 leaves cross-entropy.
        detach_weight: Whether the factor is a constant to the gradient.
        class_weight: ``(K,)`` weights of the classes.

    Returns:
        ``(N, *)``, in nats.

    Example:
        >>> dual_focal(torch.tensor([[0., 0.]]), torch.tensor([0]), gamma=1.0)
        tensor([0.3466])
    """
    true = -cross_entropy(logits, target)
    ranked_next, is_last = _ranked_next(logits, target)
    below = -cross_entropy(logits, ranked_next)
    rows = _dual_focal(true, below, is_last, gamma, detach_weight)
    return rows if class_weight is None else rows * class_weight[target]


def _ranked_next(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the class ranked next below the true one, the first of several, and if none is."""
    logits = logits.detach()
    true = pick(logits, target).unsqueeze(1)
    highest, ranked_next = logits.masked_fill(logits >= true, float('-inf')).max(dim=1)
    return ranked_next, highest == float('-inf')


def _dual_focal(
    true: Tensor, below: Tensor, is_last: Tensor, gamma: float, detach_weight: bool
) -> Tensor:
    """Return the rows by the log-probabilities of the true class and of that ranked next."""
    weight = below.exp().masked_fill(is_last, 0) - torch.expm1(true)
    return -factor_of(weight, gamma=gamma, detach_weight=detach_weight) * true


@MODELS.register_module()
class DualFocalLoss(WeightedCrossEntropyLoss):
    """Dual focal loss for mmpretrain and mmseg heads; see :func:`dual_focal`.

    Args:
        gamma: The focusing parameter; choose it on validation data.
        detach_weight: Whether the gradient treats the factor as a constant; in the paper it does
            not.
        loss_name: See :class:`CalibrationLoss`, which also takes ``class_weight``,
            ``ignore_index``, ``reduction`` and ``loss_weight``.

    Raises:
        ValueError: If ``gamma`` is below 0; for soft targets.
    """

    formula = staticmethod(dual_focal)
    no_soft_targets = 'it is defined by the class ranked below the one true class'

    def __init__(
        self,
        *,
        gamma: float = 5.0,
        detach_weight: bool = False,
        loss_name: str = 'loss_dual_focal',
        **common,
    ) -> None:
        super().__init__(gamma=gamma, detach_weight=detach_weight, loss_name=loss_name, **common)
