"""Neighbour-aware calibration (NACL)."""

import torch
from torch import Tensor

from mmcalib.losses.calibration_loss import CalibrationLoss
from mmcalib.losses.cross_entropy import cross_entropy
from mmcalib.losses.neighbours import shares_around
from mmcalib.losses.registry import MODELS


def nacl(
    logits: Tensor,
    target: Tensor,
    *,
    valid: Tensor,
    alpha: float = 0.1,
    kernel_size: int = 3,
    class_weight: Tensor | None = None,
) -> Tensor:
    r"""Cross-entropy plus the distance of the logits from neighbouring class shares, per pixel.

    .. math:: -\log p_y + \alpha \cdot \frac{1}{K} \sum_k |\tau_k - l_k|

    :math:`\tau_k` is the share of class k among the labels of the square around a pixel, itself
    included. Pixels beyond the border of the image and ignored ones have no label and are not
    counted (see :func:`shares_around`). The published code pads the map of labels with 0,
    which counts the border as class 0, for its ``'mean'``, and repeats the pixels at the border
    for its ``'gaussian'``; neither knows ignored pixels, and both penalise them.

    Source: Murugesan et al., "Trust your neighbours: Penalty-based constraints for model
    calibration", MICCAI 2023. The published code takes the mean over classes, as here.

    Args:
        logits: ``(N, K, H, W)``. A class masked with -inf has no part in the sum.
        target: ``(N, H, W)`` int64 labels.
        valid: ``(N, H, W)``, False where ignored.
        alpha: Weight of the penalty; 0 leaves cross-entropy.
        kernel_size: Width of the square in pixels, odd; the published code uses 3.
        class_weight: ``(K,)`` weights of the cross-entropy term alone.

    Returns:
        ``(N, H, W)``, in nats (the penalty in logits).

    Raises:
        ValueError: If the labels are no maps.
    """
    kernel = torch.ones(kernel_size, kernel_size, dtype=logits.dtype, device=logits.device)
    shares = shares_around(target, valid, logits.shape[1], kernel)
    distance = torch.where(logits > float('-inf'), (shares - logits).abs(), 0)
    return cross_entropy(logits, target, class_weight) + alpha * distance.mean(dim=1)


@MODELS.register_module()
class NACLLoss(CalibrationLoss):
    """Neighbour-aware calibration for mmseg's heads; see :func:`nacl`."""

    formula = staticmethod(nacl)
    loss_name = 'loss_nacl'
    choices = dict(kernel_size=(1, 3, 5, 7, 9))
    soft_targets = False
