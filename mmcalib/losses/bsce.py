"""Cross-entropy weighted by the Brier score (BSCE)."""

import torch.nn.functional as F
from torch import Tensor

from mmcalib.checks import check_choice, check_integer
from mmcalib.losses.base.cross_entropy import nll, shares_of
from mmcalib.losses.base.models_registry import MODELS
from mmcalib.losses.base.weighted_cross_entropy import WeightedCrossEntropyLoss, factor_of


def bsce(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float = 1.0,
    norm: int = 2,
    detach_weight: bool = True,
    class_weight: Tensor | None = None,
) -> Tensor:
    r"""Cross-entropy weighted by the distance between probabilities and target, per row.

    .. math:: -\Big(\sum_k |p_k - y_k|^n\Big)^\gamma \log p_y

    With :math:`n = 2, \gamma = 1` the weight is the Brier score of the row.

    Source: Lin et al., "Uncertainty Weighted Gradients for Model Calibration", CVPR 2025: BSCE has
    the weight attached, BSCE-GRA has it detached, so that it scales the gradient of cross-entropy.
    The published code takes the power of the n-th root of this sum, so its gamma is n times ours,
    and n = 1 by default.

    Args:
        logits: ``(N, K, *)``.
        target: ``(N, *)`` int64 labels or ``(N, K, *)`` probabilities.
        gamma: :math:`\gamma`; 0 leaves cross-entropy.
        norm: n, 1 or 2.
        detach_weight: Whether the weight is a constant to the gradient.
        class_weight: ``(K,)`` weights of the classes.

    Returns:
        ``(N, *)``, in nats.

    Example:
        >>> bsce(torch.tensor([[0., 0.]]), torch.tensor([0]))
        tensor([0.3466])
    """
    log_probs = F.log_softmax(logits, dim=1)
    weight = _distance(log_probs.exp() - shares_of(target, logits), norm)
    factor = factor_of(weight, gamma=gamma, detach_weight=detach_weight)
    return factor * nll(log_probs, target, class_weight)


def _distance(difference: Tensor, norm: int) -> Tensor:
    return (difference.abs() if norm == 1 else difference.square()).sum(dim=1)


@MODELS.register_module()
class BSCELoss(WeightedCrossEntropyLoss):
    """Cross-entropy weighted by the Brier score, for mmpretrain and mmseg heads; see :func:`bsce`.

    Args:
        gamma: Exponent of the weight; choose it on validation data.
        norm: 1 or 2.
        detach_weight: True is BSCE-GRA, False is BSCE.
        loss_name: See :class:`CalibrationLoss`, which also takes ``class_weight``,
            ``ignore_index``, ``reduction`` and ``loss_weight``.

    Raises:
        ValueError: If ``gamma`` is below 0, or ``norm`` neither 1 nor 2.
    """

    formula = staticmethod(bsce)

    def __init__(
        self,
        *,
        gamma: float = 1.0,
        norm: int = 2,
        detach_weight: bool = True,
        loss_name: str = 'loss_bsce',
        **common,
    ) -> None:
        super().__init__(gamma=gamma, detach_weight=detach_weight, loss_name=loss_name, **common)
        self.norm = check_choice('norm', check_integer('norm', norm), (1, 2))

    def options(self) -> dict:
        return {**super().options(), 'norm': self.norm}
