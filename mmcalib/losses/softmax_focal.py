"""Focal loss on softmax probabilities (FL)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mmcalib.losses.base.calibration_loss import CalibrationLoss
from mmcalib.losses.base.cross_entropy import (
    cross_entropy,
    finite,
    per_class,
)
from mmcalib.losses.base.models_registry import MODELS


def softmax_focal(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float | Sequence[tuple[float, float]] = 3.0,
    class_weight: Tensor | None = None,
) -> Tensor:
    r"""Cross-entropy with less weight on confident predictions, per row.

    .. math:: -(1 - p_y)^\gamma \log p_y

    With a schedule, :math:`\gamma` depends on :math:`p_y` (a constant to the gradient, as in the
    published code): ``((0.2, 5.0), (1.0, 3.0))`` is 5 for :math:`p_y` in [0, 0.2), else 3. Soft
    targets weight the terms of all classes. The toolboxes' own ``FocalLoss`` is a sigmoid one.

    Source: the FL and FLSD baselines of the paper (Mukhoti et al., 2020); see its Eq. 5.

    Args:
        logits: ``(N, K, *)``.
        target: ``(N, *)`` int64 labels or ``(N, K, *)`` probabilities.
        gamma: :math:`\gamma`, or pairs of an upper bound of :math:`p_y` (exclusive but for the
            last) and the :math:`\gamma` below it, ascending. 0 leaves cross-entropy.
        class_weight: ``(K,)`` weights of the classes.

    Returns:
        ``(N, *)``, in nats.

    Example:
        >>> softmax_focal(torch.tensor([[0., 0.]]), torch.tensor([0]), gamma=1.0)
        tensor([0.3466])
    """
    soft = target.is_floating_point()
    log_probs = finite(F.log_softmax(logits, dim=1)) if soft else -cross_entropy(logits, target)
    loss = _focal(log_probs, gamma)
    if soft:
        loss = loss * target
        return (loss if class_weight is None else loss * per_class(class_weight, loss)).sum(dim=1)
    return loss if class_weight is None else loss * class_weight[target]


def _focal(log_probs: Tensor, gamma: float | Sequence[tuple[float, float]]) -> Tensor:
    if isinstance(gamma, Sequence):
        gamma = _gamma_of(log_probs.detach().exp(), gamma)
    # At p = 1 the power of 0 has an infinite slope for gamma < 1; the clamp makes it 0 there.
    rest = (-torch.expm1(log_probs)).clamp(min=torch.finfo(log_probs.dtype).tiny ** 0.5)
    return -(rest**gamma) * log_probs


def _gamma_of(probs: Tensor, schedule: Sequence[tuple[float, float]]) -> Tensor:
    gamma = torch.full_like(probs, schedule[-1][1])
    for bound, value in reversed(schedule[:-1]):
        gamma = gamma.masked_fill(probs < bound, value)
    return gamma


@MODELS.register_module()
class SoftmaxFocalLoss(CalibrationLoss):
    """Softmax focal loss for mmpretrain and mmseg heads; see :func:`softmax_focal`.

    Args:
        gamma: The focusing parameter; the paper uses 3.
        loss_name: See :class:`CalibrationLoss`, which also takes ``class_weight``,
            ``ignore_index``, ``reduction`` and ``loss_weight``.

    Raises:
        ValueError: If ``gamma`` is below 0.
    """

    formula = staticmethod(softmax_focal)
    ranges = dict(gamma=(0.0, float('inf')))

    def __init__(self, *, gamma: float = 3.0, loss_name: str = 'loss_fl', **common) -> None:
        super().__init__(loss_name=loss_name, **common)
        self.set_parameters(gamma=gamma)

    def options(self) -> dict:
        return dict(gamma=self.gamma)
