"""mmseg's ``CrossEntropyLoss`` as a weighted sum of the cross-entropies of pixels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmcalib.losses.base.cross_entropy import nll_and_gradient


def is_mmseg_cross_entropy(loss: nn.Module) -> bool:
    """Return whether a loss is mmseg's ``CrossEntropyLoss``, or a subclass that computes alike."""
    try:
        from mmseg.models.losses import CrossEntropyLoss
    except ImportError:
        return False
    return isinstance(loss, CrossEntropyLoss) and type(loss).forward is CrossEntropyLoss.forward


def mmseg_pixel_weights(
    loss: nn.Module, labels: Tensor, valid: Tensor, dtype: torch.dtype
) -> Tensor:
    r"""Return the factors by which mmseg's loss is a sum of :math:`-\log p_y` over pixels.

    .. math:: \frac{\text{loss\_weight} \cdot w_y}{D + \varepsilon}

    and 0 for ignored pixels. D is the number of all pixels, with ``avg_non_ignore`` that of the
    valid ones, and with class weights w the sum of these over valid pixels; 1 for ``'sum'``. Where
    mmseg raises an IndexError, which 1.2.2 does for class weights beside ignored pixels and later
    ones do if ``avg_non_ignore`` is set too, it is the same.

    Args:
        loss: With the reduction ``'mean'`` or ``'sum'``.
        labels: ``(N, H, W)`` int64, in [0, K).
        valid: ``(N, H, W)``, False where ignored.
        dtype: That the loss is computed in.
    """
    weight = valid.to(dtype)
    if loss.class_weight is not None:
        classes = torch.as_tensor(loss.class_weight, dtype=dtype, device=labels.device)
        weight = weight * classes[labels]
    if loss.reduction == 'sum':
        return loss.loss_weight * weight
    all_pixels = loss.class_weight is None and not loss.avg_non_ignore
    divisor = labels.numel() if all_pixels else weight.sum()
    return loss.loss_weight * weight / (divisor + torch.finfo(torch.float32).eps)


def cross_entropy_and_gradient(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of every row of logits without -inf, and its gradient."""
    return nll_and_gradient(F.log_softmax(logits, dim=1), target)
