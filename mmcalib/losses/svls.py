"""Spatially varying label smoothing (SVLS)."""

import torch
from torch import Tensor

from mmcalib.losses.calibration_loss import CalibrationLoss
from mmcalib.losses.cross_entropy import cross_entropy
from mmcalib.losses.neighbours import shares_around
from mmcalib.losses.registry import MODELS


def svls(
    logits: Tensor,
    target: Tensor,
    *,
    valid: Tensor,
    sigma: float = 1.0,
    class_weight: Tensor | None = None,
) -> Tensor:
    r"""Cross-entropy against labels smoothed over their neighbours, per pixel.

    .. math:: -\sum_k \tilde y_k \log p_k, \qquad
        \tilde y = \frac{\sum_{n} g_n\, y_n}{\sum_{n} g_n}

    over the 3×3 pixels around one, where :math:`g` is a Gaussian whose middle weighs as much as
    all neighbours together: the own label keeps at least half. Away from the borders of objects it
    is cross-entropy.

    Source: Islam and Glocker, "Spatially Varying Label Smoothing", IPMI 2021. Its published code
    repeats the pixels at the border of the image and has no ignored ones; here both have no label
    and no weight (see :func:`shares_around`), so that beside them the own label weighs more.

    Args:
        logits: ``(N, K, H, W)``.
        target: ``(N, H, W)`` int64 labels.
        valid: ``(N, H, W)``, False where ignored.
        sigma: Standard deviation of the Gaussian, in pixels; the paper uses 1.
        class_weight: ``(K,)`` weights of the classes.

    Returns:
        ``(N, H, W)``, in nats.

    Raises:
        ValueError: If the labels are no maps.
    """
    offsets = torch.arange(-1, 2, dtype=logits.dtype, device=logits.device)
    line = torch.exp(-offsets.square() / (2 * sigma**2))
    kernel = line.unsqueeze(0) * line.unsqueeze(1)
    around = kernel.sum() - 1  # of which the middle has 1
    kernel = torch.where((offsets.unsqueeze(0) == 0) & (offsets.unsqueeze(1) == 0), around, kernel)
    shares = shares_around(target, valid, logits.shape[1], kernel)
    return cross_entropy(logits, shares, class_weight)


@MODELS.register_module()
class SVLSLoss(CalibrationLoss):
    """Spatially varying label smoothing for mmseg's heads; see :func:`svls`."""

    formula = staticmethod(svls)
    loss_name = 'loss_svls'
    ranges = dict(sigma=(1e-2, float('inf')))
    soft_targets = False
