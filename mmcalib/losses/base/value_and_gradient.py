"""The weighted sum of a loss over all rows, computed together with its gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from mmcalib.checks import at_least_single
from mmcalib.losses.base.compiled_kernel import kept_dtype, kernel_of, total_of

# Logits per piece: few enough for the temporaries of a formula to stay in a CPU's cache, and enough
# for a GPU to be busy with one piece.
PIECE = {'cpu': 1 << 19}
GPU_PIECE = 1 << 25


def weighted_sum(
    formula: Callable[..., Tensor],
    logits: Tensor,
    target: Tensor,
    weight: Tensor,
    options: Mapping,
    *,
    by_hand: Callable[..., tuple[Tensor, Tensor]] | None = None,
    compile: bool = False,
) -> Tensor:
    r"""Return :math:`\sum_i w_i \ell_i` of a formula for row losses.

    The gradient is computed in the forward pass, and only it and the logits are kept for the
    backward pass: no softmax and no other temporary of the size of the logits stays. Eager, this
    goes piece by piece; compiled, one kernel gives value and gradient. Where the target, the
    weights or an option require a gradient, plain autograd computes all of them, and so it does
    the gradient of a gradient (``create_graph=True``).

    Args:
        formula: ``formula(logits, target, **options)`` returns the loss of every row.
        logits: ``(N, K, *)``; float16 and bfloat16 are computed in float32.
        target: ``(N, *)`` int64 labels in [0, K), or ``(N, K, *)`` probabilities.
        weight: ``(N, *)``, or one for all rows; float32 or float64.
        options: Further arguments of the formula; tensors in the shape of the logits go with them.
        by_hand: Takes what the formula takes, and returns the loss of every row and its gradient
            by the logits, or None where autograd shall have it; quicker than autograd on a CPU.
            It need not know logits of -inf.
        compile: Use ``torch.compile``. Where that does not work: eager, with one warning.

    Returns:
        A scalar in the dtype of `weight`.
    """
    others = (x for x in (target, weight, *options.values()) if torch.is_tensor(x))
    plain = (
        not (torch.is_grad_enabled() and logits.requires_grad)
        or any(x.requires_grad for x in others)
        or torch.compiler.is_compiling()  # inside a compiled model this joins the model's kernels
    )
    if plain:
        return total_of(formula, logits, target, weight, options)
    return _WeightedSum.apply(logits, formula, target, weight, options, by_hand, compile)


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, formula, target, weight, options, by_hand, compile):
        value, grad = value_and_gradient(
            formula, logits.detach(), target, weight, options, by_hand=by_hand, compile=compile
        )
        ctx.save_for_backward(grad, logits, target, weight)
        ctx.formula, ctx.options = formula, options
        return value

    @staticmethod
    def backward(ctx, grad_output):
        grad, logits, target, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: what is kept would count as a constant
            total = total_of(ctx.formula, logits, target, weight, ctx.options)
            (grad,) = torch.autograd.grad(total, logits, grad_output, create_graph=True)
        # Looking at the factor would make a GPU wait.
        elif grad_output.device.type != 'cpu' or grad_output != 1:
            grad = grad * grad_output
        return grad.to(logits.dtype), None, None, None, None, None, None


def value_and_gradient(
    formula: Callable[..., Tensor],
    logits: Tensor,
    target: Tensor,
    weight: Tensor,
    options: Mapping,
    *,
    by_hand: Callable[..., tuple[Tensor, Tensor]] | None = None,
    compile: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return :func:`weighted_sum` of logits without a graph, and its gradient by them."""
    if compile:
        each = weight
        if weight.ndim == 0 and not target.is_floating_point():
            # Batches without ignored rows and with some share one version of the kernel.
            each = weight.expand(target.shape).contiguous()
        result = kernel_of(formula)(logits, target, each, options)
        if result is not None:
            return result
    return _eager(formula, by_hand, logits, target, weight, options)


def _eager(formula, by_hand, logits, target, weight, options) -> tuple[Tensor, Tensor]:
    shape = logits.shape
    if logits.ndim > 2:  # softmax is several times slower on (N, K, 1) than on (N, K)
        logits, weight = logits.flatten(2), weight.flatten(1) if weight.ndim else weight
        target = target.flatten(2 if target.is_floating_point() else 1)
        options = {key: x.flatten(2) if _has_shape(x, shape) else x for key, x in options.items()}
    grad = torch.empty_like(logits, dtype=kept_dtype(logits))
    value = weight.new_zeros(())
    for rows in _pieces(logits.shape, PIECE.get(logits.device.type, GPU_PIECE)):
        dense = rows if logits.ndim == 2 else (rows[0], slice(None), rows[1])
        piece = (
            at_least_single(logits[dense]),
            target[dense if target.is_floating_point() else rows],
            weight[rows] if weight.ndim else weight,
            {key: x[dense] if _has_shape(x, logits.shape) else x for key, x in options.items()},
        )
        total = None
        if by_hand is not None and logits.device.type == 'cpu':
            total = _by_hand(by_hand, *piece, out=grad[dense])
        if total is None:
            total = _by_autograd(formula, *piece, out=grad[dense])
        value += total
    return value, grad.view(shape) if grad.is_contiguous() else grad.reshape(shape)


def _has_shape(option, shape: torch.Size) -> bool:
    return torch.is_tensor(option) and option.shape == shape


def _by_hand(by_hand, logits, target, weight, options, *, out) -> Tensor | None:
    """Return the total of a piece; None where there is none that is finite.

    That is so where a class is masked, or where the loss has no gradient by hand.
    """
    found = by_hand(logits, target, **options)
    if found is None:
        return None
    rows, grad = found
    total = (rows * weight).sum()
    if not torch.isfinite(total):
        return None
    torch.mul(grad, weight.unsqueeze(1) if weight.ndim else weight, out=out)
    return total


def _by_autograd(formula, logits, target, weight, options, *, out) -> Tensor:
    with torch.enable_grad():
        logits, total = logits.detach().requires_grad_(), None
        if logits.device.type == 'cpu':  # where a look is free, and leaving rows out is not
            total = (formula(logits, target, **options) * weight).sum()
        if total is None or not torch.isfinite(total):
            total = total_of(formula, logits, target, weight, options)
    (grad,) = torch.autograd.grad(total, logits)
    out.copy_(grad)
    return total.detach()


def _pieces(shape: torch.Size, limit: int) -> Iterator[tuple[slice, ...]]:
    """Cut ``(N, K)`` or ``(N, K, P)`` into slices of N (and P) of about `limit` logits."""
    per_sample = shape[1:].numel()
    samples = max(limit // max(per_sample, 1), 1)
    if len(shape) == 2:
        yield from ((slice(start, start + samples),) for start in range(0, shape[0], samples))
        return
    pixels = max(limit // shape[1], 1)
    for first in range(0, shape[0], samples):
        for start in range(0, shape[2], pixels):
            yield slice(first, first + samples), slice(start, start + pixels)
