"""Cross-entropy, the term that all losses share, and helpers for eager and compiled formulas."""

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
    if torch.compiler.is_compiling() and not target.is_floating_point():
        # Compiled by the log-softmax, MbLS of 4096×1000 takes 1.29 of cross-entropy's time and
        # focal loss of 4×21×256×256 takes 1.23; this takes 0.93 and 0.56. The error is the rounding
        # of the largest logit: 1e-3 at 1e4 in float32.
        return weight_by_label(_log_sum_exp(logits) - pick(logits, target), target, class_weight)
    return nll(F.log_softmax(logits, dim=1), target, class_weight)


def _log_sum_exp(logits: Tensor) -> Tensor:
    """Return the log-sum-exp over the classes of each row, in the form that compiles best."""
    if logits.ndim > 2:
        return logits.logsumexp(dim=1)  # Its gradient recomputes exp and keeps nothing.
    # Where the classes lie side by side in memory, exp costs more than keeping it.
    highest = logits.amax(dim=1, keepdim=True).detach()
    return (logits - highest).exp().sum(dim=1).log() + highest.squeeze(1)


def nll(log_probs: Tensor, target: Tensor, class_weight: Tensor | None = None) -> Tensor:
    """Return :func:`cross_entropy`, computed from the log-softmax of the logits."""
    if not target.is_floating_point():
        return weight_by_label(-pick(log_probs, target), target, class_weight)
    if class_weight is not None:
        target = target * per_class(class_weight, log_probs)
    return -(clamp_to_finite(log_probs) * target).sum(dim=1)


def weighted_cross_entropy(logits, target, factor, class_weight) -> Tensor:
    """Return :func:`cross_entropy` whose terms have a factor, a function of the log-probability."""
    if target.is_floating_point():
        log_probs = F.log_softmax(logits, dim=1)
        return nll(log_probs, target * factor(log_probs), class_weight)
    # In this form compiled focal loss takes 0.87 of cross-entropy's time at 4096×1000; with the
    # factor applied to the weighted rows it takes 1.57.
    log_probs = -cross_entropy(logits, target)
    return weight_by_label(-factor(log_probs) * log_probs, target, class_weight)


def weighted_cross_entropy_gradient(logits, target, weight, out, factor, class_weight) -> Tensor:
    """Return :func:`weighted_cross_entropy` for labels; write its weighted gradient to `out`.

    See :func:`~mmcalib.losses.value_and_gradient.register_gradient`.
    """
    subtract_highest(logits, out)
    label_logit = pick(out, target)
    total = out.exp_().sum(dim=1)
    # The loss of a row depends on its log-probability alone, so autograd has one number a row.
    with torch.enable_grad():
        log_probs = (label_logit - total.log()).requires_grad_()
        rows = weight_by_label(-factor(log_probs) * log_probs, target, class_weight)
    (slope,) = torch.autograd.grad(rows, log_probs, weight)
    out.mul_((-slope / total).unsqueeze(1))
    add_to_labels(out, target, slope)
    return rows.detach()


def subtract_highest(logits: Tensor, out: Tensor) -> None:
    """Write the logits minus the highest of each row to `out`."""
    torch.sub(logits, logits.amax(dim=1, keepdim=True), out=out)


def add_to_labels(values: Tensor, target: Tensor, addend: Tensor) -> None:
    """Add ``(N, *)`` numbers to the ``(N, K, *)`` values at the labels, in place."""
    if torch.compiler.is_compiling():
        # A compiler fuses a mask, as in `pick`.
        values.add_(torch.where(is_label(target, values), addend.unsqueeze(1), 0))
    else:
        values.scatter_add_(1, target.unsqueeze(1), addend.unsqueeze(1))


def weight_by_label(rows: Tensor, target: Tensor, class_weight: Tensor | None) -> Tensor:
    """Return rows ``(N, *)``, each weighted by the class of its label."""
    return rows if class_weight is None else rows * class_weight[target]


def pick(values: Tensor, target: Tensor) -> Tensor:
    """Return the ``(N, K, *)`` values at ``(N, *)`` labels."""
    if not torch.compiler.is_compiling():
        return values.gather(1, target.unsqueeze(1)).squeeze(1)
    # A compiler fuses a mask and its gradient with the surrounding operations, but not a gather:
    # label smoothing of 4×21×256×256 takes 0.66 of cross-entropy's time with a mask, 1.25 without.
    return torch.where(is_label(target, values), values, 0).sum(dim=1)


def is_label(target: Tensor, logits: Tensor) -> Tensor:
    """Return the ``(N, K, *)`` mask of the labels."""
    classes = torch.arange(logits.shape[1], device=logits.device)
    return per_class(classes, logits) == target.unsqueeze(1)


def target_probabilities(target: Tensor, logits: Tensor) -> Tensor:
    """Return the target as probabilities ``(N, K, *)``."""
    return target if target.is_floating_point() else is_label(target, logits).to(logits.dtype)


def clamp_to_finite(log_probs: Tensor) -> Tensor:
    """Return log-probabilities without -inf, so that their product with a probability of 0 is 0.

    A class that is masked with a logit of -inf has a probability of 0.
    """
    return log_probs.clamp(min=torch.finfo(log_probs.dtype).min)


def per_class(values: Tensor, logits: Tensor) -> Tensor:
    """Return ``(K,)`` values in a shape that broadcasts with ``(N, K, *)`` logits."""
    return values.view(-1, *[1] * (logits.ndim - 2))


def power(base: Tensor, gamma: float | Tensor, detach: bool = False) -> Tensor:
    r"""Return :math:`b^\gamma` for b of at least 0, with a slope of 0 at 0.

    Args:
        base: b.
        gamma: :math:`\gamma`, at least 0.
        detach: Whether the power is a constant to the gradient.
    """
    # At 0 a power below 1 has an infinite slope.
    base = base.clamp(min=torch.finfo(base.dtype).tiny ** 0.5)
    return (base.detach() if detach else base) ** gamma
