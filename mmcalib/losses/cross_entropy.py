"""The term that all losses share, in a form that a compiler fuses well."""

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, target: Tensor, class_weight: Tensor | None = None) -> Tensor:
    r"""Return :math:`-w_y \log p_y` per row; :math:`-\sum_k w_k y_k \log p_k` for soft targets.

    Args:
        logits: ``(N, K, *)``.
        target: ``(N, *)`` int64 labels or ``(N, K, *)`` probabilities.
        class_weight: ``(K,)``, or None.

    Returns:
        ``(N, *)``, in nats.
    """
    if target.is_floating_point() or not torch.compiler.is_compiling():
        return F.cross_entropy(logits, target, weight=class_weight, reduction='none')
    # The shift keeps huge logits exact, and cancels out of the value: no gradient goes through it.
    # logsumexp does its own exp again in the gradient, so that none has to be kept.
    shifted = logits - logits.amax(dim=1, keepdim=True).detach()
    rows = shifted.logsumexp(dim=1) - pick(shifted, target)
    return rows if class_weight is None else rows * class_weight[target]


def pick(values: Tensor, target: Tensor) -> Tensor:
    """Return what ``(N, K, *)`` values hold at ``(N, *)`` labels."""
    if not torch.compiler.is_compiling():
        return values.gather(1, target.unsqueeze(1)).squeeze(1)
    # A compiler fuses a mask with what surrounds it, and its gradient too; a gather it does not.
    classes = torch.arange(values.shape[1], device=values.device)
    hit = classes.view(-1, *[1] * (values.ndim - 2)) == target.unsqueeze(1)
    return torch.where(hit, values, 0).sum(dim=1)
