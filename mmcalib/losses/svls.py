"""Spatially varying label smoothing (SVLS)."""

import torch
from torch import Tensor

from mmcalib.checks import check_number
from mmcalib.losses.base.calibration_loss import CalibrationLoss
from mmcalib.losses.base.cross_entropy import cross_entropy
from mmcalib.losses.base.label_neighbourhood import gaussian_kernel, neighbourhood_shares
from mmcalib.losses.base.models_registry import MODELS


@MODELS.register_module()
class SVLSLoss(CalibrationLoss):
    r"""Cross-entropy against labels smoothed over their neighbours, for mmseg heads.

    .. math:: -\sum_k \tilde y_k \log p_k, \qquad
        \tilde y = \frac{\sum_{n} g_n\, y_n}{\sum_{n} g_n}

    over the 3×3 pixels around one, where :math:`g` is a Gaussian whose middle weighs as much as
    all neighbours together: the own label keeps at least half. Away from the borders of objects it
    is cross-entropy.

    Source: Islam and Glocker, "Spatially Varying Label Smoothing", IPMI 2021. Its published code
    repeats the pixels at the border of the image and has no ignored ones; here both have no label
    and no weight (see :func:`neighbourhood_shares`), so that beside them the own label weighs more.

    Args:
        sigma: Standard deviation of the Gaussian, in pixels; the paper uses 1.
        loss_name: See :class:`CalibrationLoss`, which also takes ``class_weight``,
            ``ignore_index``, ``reduction`` and ``loss_weight``.

    Raises:
        ValueError: If ``sigma`` is not above 0; for soft targets, and labels that are no maps.
    """

    formula = staticmethod(cross_entropy)
    no_soft_targets = 'it smooths labels by those of their neighbours'
    reach = 1
    ranges = dict(sigma=(1e-2, float('inf')))

    def __init__(self, *, sigma: float = 1.0, loss_name: str = 'loss_svls', **common) -> None:
        super().__init__(loss_name=loss_name, **common)
        check_number('sigma', sigma)
        self.set_parameters(sigma=sigma)

    def options(self) -> dict:
        return {}

    def extra_repr(self) -> str:
        return f'sigma={self.sigma!r}'

    def look_around(
        self, labels: Tensor, valid: Tensor, num_classes: int, dtype: torch.dtype
    ) -> tuple[Tensor, dict[str, Tensor]]:
        kernel = gaussian_kernel(3, self.sigma, dtype=dtype, device=labels.device)
        around = kernel.sum() - kernel[1, 1]
        middle = torch.zeros_like(kernel)
        middle[1, 1] = around - kernel[1, 1]
        return neighbourhood_shares(labels, valid, num_classes, kernel + middle), {}
