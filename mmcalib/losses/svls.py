"""Spatially varying label smoothing (SVLS)."""

import math

import torch
from torch import Tensor

from mmcalib.losses.cross_entropy import cross_entropy
from mmcalib.losses.neighbour_loss import NeighbourLoss


def svls(
    logits: Tensor, target: Tensor, *, neighbours: Tensor, class_weight: Tensor | None = None
) -> Tensor:
    r"""Cross-entropy against labels smoothed over their neighbours, per pixel.

    .. math:: -\sum_k \tilde y_k \log p_k

    Source: Islam and Glocker, "Spatially Varying Label Smoothing", IPMI 2021.

    Args:
        logits: ``(N, K, *)``.
        target: ``(N, *)`` labels; not used, since the smoothed ones have them already.
        neighbours: :math:`\tilde y`, ``(N, K, *)``, shares of the classes around a pixel; see
            :func:`~mmcalib.losses.neighbour_loss.shares_around`.
        class_weight: ``(K,)`` weights of the classes.

    Returns:
        ``(N, *)``, in nats.
    """
    return cross_entropy(logits, neighbours, class_weight)


class SVLSLoss(NeighbourLoss):
    r"""Spatially varying label smoothing for mmseg's heads; see :func:`svls`.

    .. math:: \tilde y = \frac{\sum_{n} g_n\, y_n}{\sum_{n} g_n}

    over the 3×3 pixels around one, where :math:`g` is a Gaussian whose middle weighs as much as
    all neighbours together: the own label keeps at least half. Away from the borders of objects it
    is cross-entropy. The published code repeats the pixels at the border of the image and has no
    ignored ones; here both have no label and no weight, so that beside them the own label weighs
    more.

    Args:
        sigma: Standard deviation of the Gaussian, in pixels; the paper uses 1.
        common: Options of :class:`CalibrationLoss`.

    Raises:
        ValueError: If an option is out of range; for soft targets.
    """

    formula = staticmethod(svls)
    loss_name = 'loss_svls'
    ranges = dict(sigma=(1e-2, float('inf')))

    def __init__(self, *, sigma: float = 1.0, **common) -> None:
        super().__init__(**common)
        self.sigma = self.check_parameter('sigma', sigma)

    def kernel(self) -> Tensor:
        """Return the Gaussian weights of 3×3 pixels, the middle as heavy as all neighbours."""
        side = math.exp(-1 / (2 * self.sigma**2))
        line = torch.tensor([side, 1, side], dtype=torch.float64, device='cpu')
        kernel = line.unsqueeze(1) * line
        kernel[1, 1] = kernel.sum() - 1
        return kernel
