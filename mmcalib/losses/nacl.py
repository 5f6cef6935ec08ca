"""Neighbour-aware calibration (NACL)."""

import torch
from torch import Tensor

from mmcalib.checks import check_integer
from mmcalib.losses.base.calibration_loss import CalibrationLoss
from mmcalib.losses.base.cross_entropy import cross_entropy
from mmcalib.losses.base.label_neighbourhood import neighbourhood_shares
from mmcalib.losses.base.models_registry import MODELS


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
        neighbours: :math:`\tau`, ``(N, K, *)``.
        alpha: Weight of the penalty; 0 leaves cross-entropy.
        class_weight: ``(K,)`` weights of the cross-entropy term alone.

    Returns:
        ``(N, *)``, in nats (the penalty in logits).
    """
    distance = torch.where(logits > float('-inf'), (neighbours - logits).abs(), 0)
    return cross_entropy(logits, target, class_weight) + alpha * distance.mean(dim=1)


@MODELS.register_module()
class NACLLoss(CalibrationLoss):
    r"""Neighbour-aware calibration for mmseg heads; see :func:`nacl`.

    :math:`\tau_k` is the share of class k among the labels of the square around a pixel, itself
    included. Pixels beyond the border of the image and ignored ones have no label and are not
    counted (see :func:`neighbourhood_shares`). The published code pads the map of labels with 0,
    which counts the border as class 0, for its ``'mean'``, and repeats the pixels at the border
    for its ``'gaussian'``; neither knows ignored pixels, and both penalise them.

    Args:
        alpha: Weight of the penalty; choose it on validation data.
        kernel_size: Width of the square in pixels, odd; the published code uses 3.
        loss_name: See :class:`CalibrationLoss`, which also takes ``class_weight``,
            ``ignore_index``, ``reduction`` and ``loss_weight``.

    Raises:
        ValueError: If ``alpha`` is below 0, or ``kernel_size`` even; for soft targets, and labels
            that are no maps.
    """

    formula = staticmethod(nacl)
    no_soft_targets = 'it counts the labels of neighbouring pixels'
    ranges = dict(alpha=(0.0, float('inf')))

    def __init__(
        self,
        *,
        alpha: float = 0.1,
        kernel_size: int = 3,
        loss_name: str = 'loss_nacl',
        **common,
    ) -> None:
        super().__init__(loss_name=loss_name, **common)
        self.set_parameters(alpha=alpha)
        if check_integer('kernel_size', kernel_size) % 2 == 0:
            raise ValueError(f'kernel_size must be odd, got {kernel_size!r}')
        self.kernel_size = kernel_size
        self.reach = kernel_size // 2

    def options(self) -> dict:
        return dict(alpha=self.alpha)

    def extra_repr(self) -> str:
        return f'{super().extra_repr()}, kernel_size={self.kernel_size!r}'

    def look_around(
        self, labels: Tensor, valid: Tensor, num_classes: int, dtype: torch.dtype
    ) -> tuple[Tensor, dict[str, Tensor]]:
        kernel = torch.ones(self.kernel_size, self.kernel_size, dtype=dtype, device=labels.device)
        shares = neighbourhood_shares(labels, valid, num_classes, kernel)
        return labels, dict(neighbours=shares)
