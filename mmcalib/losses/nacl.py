"""Neighbour-aware calibration (NACL)."""

import torch
from torch import Tensor

from mmcalib.losses.cross_entropy import cross_entropy
from mmcalib.losses.neighbour_loss import NeighbourLoss
from mmcalib.options import check_choice


def nacl(
    logits: Tensor,
    target: Tensor,
    *,
    neighbours: Tensor,
    alpha: float = 0.1,
    class_weight: Tensor | None = None,
) -> Tensor:
    r"""Cross-entropy plus the distance of the logits from neighbouring class shares, per pixel.

    .. math:: -\log p_y + \alpha \cdot \frac{1}{K} \sum_k |\tau_k - l_k|

    Source: Murugesan et al., "Trust your neighbours: Penalty-based constraints for model
    calibration", MICCAI 2023. The published code takes the mean over classes, as here.

    Args:
        logits: ``(N, K, *)``. A class masked with -inf has no part in the sum.
        target: ``(N, *)`` int64 labels.
        neighbours: :math:`\tau`, ``(N, K, *)``, shares of the classes around a pixel; see
            :func:`~mmcalib.losses.neighbour_loss.shares_around`.
        alpha: Weight of the penalty; 0 leaves cross-entropy.
        class_weight: ``(K,)`` weights of the cross-entropy term alone.

    Returns:
        ``(N, *)``, in nats (the penalty in logits).
    """
    distance = torch.where(logits > float('-inf'), (neighbours - logits).abs(), 0)
    return cross_entropy(logits, target, class_weight) + alpha * distance.mean(dim=1)


class NACLLoss(NeighbourLoss):
    r"""Neighbour-aware calibration for mmseg's heads; see :func:`nacl`.

    :math:`\tau_k` is the share of class k among the labels of the square around a pixel, itself
    included. Pixels beyond the border of the image and ignored ones have no label and are not
    counted. The published code pads the map of labels with 0, which counts the border as class 0,
    for its ``'mean'``, and repeats the pixels at the border for its ``'gaussian'``; neither knows
    ignored pixels, and both penalise them.

    Args:
        kernel_size: Width of the square in pixels, odd; the published code uses 3.
        common: `alpha`, and the options of :class:`CalibrationLoss`.

    Raises:
        ValueError: If an option is out of range; for soft targets.
    """

    formula = staticmethod(nacl)
    loss_name = 'loss_nacl'

    def __init__(self, *, kernel_size: int = 3, **common) -> None:
        super().__init__(**common)
        self.kernel_size = check_choice('kernel_size', kernel_size, (1, 3, 5, 7, 9))

    def kernel(self) -> Tensor:
        """Return the weights of a square of neighbours, all of them 1."""
        return torch.ones(self.kernel_size, self.kernel_size, device='cpu')
