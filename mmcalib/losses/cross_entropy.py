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
    rows = log_sum_exp(logits) - pick(logits, target)
    return rows if class_weight is None else rows * class_weight[target]


def log_sum_exp(logits: Tensor) -> Tensor:
    """Return the logarithm of the sum of exp over the classes, ``(N, *)``.

    Compiled, the error is the rounding of the largest logit: 1e-3 at 1e4 in float32.
    """
    if logits.ndim > 2 or not torch.compiler.is_compiling():
        return logits.logsumexp(dim=1)  # compiled, its gradient recomputes exp and keeps nothing
    # With the classes side by side, exp costs more than keeping it.
    highest = logits.amax(dim=1, keepdim=True).detach()
    return (logits - highest).exp().sum(dim=1).log() + highest.squeeze(1)


def pick(values: Tensor, target: Tensor) -> Tensor:
    """Return what ``(N, K, *)`` values hold at ``(N, *)`` labels."""
    if not torch.compiler.is_compiling():
        return values.gather(1, target.unsqueeze(1)).squeeze(1)
    # A compiler fuses a mask with what surrounds it, and its gradient too; a gather it does not.
    classes = torch.arange(values.shape[1], device=values.device)
    hit = classes.view(-1, *[1] * (values.ndim - 2)) == target.unsqueeze(1)
    return torch.where(hit, values, 0).sum(dim=1)
