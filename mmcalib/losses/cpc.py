"""Calibration by pairwise constraints (CPC)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from mmcalib.losses.base.calibration_loss import CalibrationLoss
from mmcalib.losses.base.cross_entropy import cross_entropy, per_class, pick
from mmcalib.losses.base.models_registry import MODELS


def cpc(
    logits: Tensor,
    target: Tensor,
    *,
    alpha_true: float = 0.1,
    alpha_others: float = 1.0,
    class_weight: Tensor | None = None,
) -> Tensor:
    r"""Cross-entropy plus binary constraints on all pairs of classes, per row.

    .. math:: -\log p_y - \frac{\alpha}{K - 1} \sum_{k \ne y} \log \sigma(l_y - l_k)
        - \frac{\alpha'}{(K - 1)(K - 2)} \sum_{j < k;\ j, k \ne y}
        \tfrac{1}{2} \big(\log \sigma(l_j - l_k) + \log \sigma(l_k - l_j)\big)

    The true class is to be told from each other one, and no two others from each other. Time grows
    with the square of K, memory with K.

    Source: Cheng and Vasconcelos, "Calibrating Deep Neural Networks by Pairwise Constraints", CVPR
    2022, which has no published code; the formula and the weights are those of its implementation
    in the published code of CALS (MIT), and have not been compared with the equations of the paper.
    That code adds the pairs of a class with itself, a constant, and holds all pairs in memory.

    Args:
        logits: ``(N, K, *)``. A class masked with -inf is in no pair.
        target: ``(N, *)`` int64 labels.
        alpha_true: :math:`\alpha`, weight of the pairs with the true class.
        alpha_others: :math:`\alpha'`, weight of the other pairs. With both 0 it is cross-entropy.
        class_weight: ``(K,)`` weights of the cross-entropy term alone.

    Returns:
        ``(N, *)``, in nats.

    Example:
        >>> cpc(torch.tensor([[0., 0., 0.]]), torch.tensor([0]))
        tensor([1.5145])
    """
    num_classes = logits.shape[1]
    classes = per_class(torch.arange(num_classes, device=logits.device), logits)
    other = (classes != target.unsqueeze(1)) & (logits > float('-inf'))
    finite = torch.where(logits > float('-inf'), logits, 0)
    behind = F.softplus(finite - pick(logits, target).unsqueeze(1))
    with_true = torch.where(other, behind, 0).sum(dim=1) / (num_classes - 1)
    of_others = _Pairs.apply(finite, other.to(logits.dtype)) / max(
        (num_classes - 1) * (num_classes - 2), 1
    )
    rows = cross_entropy(logits, target, class_weight)
    return rows + alpha_true * with_true + alpha_others * of_others


class _Pairs(torch.autograd.Function):
    """Sum of (softplus(d) + softplus(-d)) / 2 over the pairs of the classes that count, per row.

    Autograd would keep every pair.
    """

    @staticmethod
    def forward(ctx, logits, counts):
        ctx.save_for_backward(logits, counts)
        total = torch.zeros_like(logits[:, 0])
        for _, difference, pairs in _pairs(logits, counts):
            total += ((F.softplus(difference) - difference / 2) * pairs).sum(dim=1)
        return total

    @staticmethod
    def backward(ctx, grad_output):
        logits, counts = ctx.saved_tensors
        slopes = torch.zeros_like(logits)
        for shift, difference, pairs in _pairs(logits, counts):
            slope = torch.tanh(difference / 2) * (pairs / 2)
            slopes = slopes + slope - slope.roll(-shift, 1)
        return slopes * grad_output.unsqueeze(1), None


def _pairs(logits: Tensor, counts: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield each class with that some places before it: the shift, differences, and weights."""
    num_classes = logits.shape[1]
    for shift in range(1, num_classes // 2 + 1):
        # Half way round, each pair comes twice.
        share = 0.5 if 2 * shift == num_classes else 1.0
        yield shift, logits - logits.roll(shift, 1), share * counts * counts.roll(shift, 1)


@MODELS.register_module()
class CPCLoss(CalibrationLoss):
    """Calibration by pairwise constraints for mmpretrain and mmseg heads; see :func:`cpc`.

    Args:
        alpha_true: Weight of the pairs with the true class.
        alpha_others: Weight of the other pairs.
        loss_name: See :class:`CalibrationLoss`, which also takes ``class_weight``,
            ``ignore_index``, ``reduction`` and ``loss_weight``.

    Raises:
        ValueError: If a weight is below 0, or with ``compile=True``; for soft targets.
    """

    formula = staticmethod(cpc)
    no_soft_targets = 'it compares the one true class with each other class'
    ranges = dict.fromkeys(('alpha_true', 'alpha_others'), (0.0, float('inf')))

    def __init__(
        self,
        *,
        alpha_true: float = 0.1,
        alpha_others: float = 1.0,
        loss_name: str = 'loss_cpc',
        **common,
    ) -> None:
        super().__init__(loss_name=loss_name, **common)
        if self.compile_kernel:
            raise ValueError(
                'CPCLoss loops over the pairs of classes and cannot be compiled: leave out compile'
            )
        self.set_parameters(alpha_true=alpha_true, alpha_others=alpha_others)

    def options(self) -> dict:
        return dict(alpha_true=self.alpha_true, alpha_others=self.alpha_others)
