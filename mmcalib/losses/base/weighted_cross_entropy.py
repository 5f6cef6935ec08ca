"""Cross-entropy weighted by a function of the prediction, as in focal losses."""

import torch
from torch import Tensor

from mmcalib.losses.base.calibration_loss import CalibrationLoss


def factor_of(weight: Tensor, *, gamma: float, detach_weight: bool) -> Tensor:
    r"""Return :math:`w^\gamma`, the factor of the cross-entropy of a row or of a class.

    Args:
        weight: w, at least 0.
        gamma: :math:`\gamma`; 0 leaves cross-entropy.
        detach_weight: Whether w is a constant to the gradient.
    """
    if detach_weight:
        weight = weight.detach()
    # At 0 a power below 1 has an infinite slope; the clamp makes it 0 there.
    return weight.clamp(min=torch.finfo(weight.dtype).tiny ** 0.5) ** gamma


class WeightedCrossEntropyLoss(CalibrationLoss):
    """Base of the losses whose cross-entropy has a factor :func:`factor_of`.

    Args:
        gamma: The power of the weight, at least 0.
        detach_weight: Whether the weight is a constant to the gradient.

    Raises:
        TypeError: If an option is of another type.
        ValueError: If ``gamma`` is below 0.
    """

    ranges = dict(gamma=(0.0, float('inf')))

    def __init__(self, *, gamma: float, detach_weight: bool, **common) -> None:
        super().__init__(**common)
        if not isinstance(detach_weight, bool):
            raise TypeError(f'detach_weight must be True or False, got {detach_weight!r}')
        self.set_parameters(gamma=gamma)
        self.detach_weight = detach_weight

    def options(self) -> dict:
        return dict(gamma=self.gamma, detach_weight=self.detach_weight)
