"""The weighted sum of a loss over all rows, computed together with its gradient."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from itertools import product

import torch
from torch import Tensor

from mmcalib.tensors import at_least_single

# Logits per piece: few enough for the temporaries of a formula to stay in a CPU's cache, and enough
# for a GPU to be busy with one piece.
PIECE = {'cpu': 1 << 19}
GPU_PIECE = 1 << 25

_not_compilable = set()


def weighted_sum(formula, logits, target, weight, options, compile=False) -> Tensor:
    r"""Return :math:`\sum_i w_i \ell_i` of a formula for row losses.

    The gradient is computed in the forward pass, and only it is kept for the backward pass. Eager,
    this goes piece by piece; compiled, one kernel gives value and gradient. Where the target or the
    weights require a gradient, and inside a compiled model, it is plain autograd's.

    Args:
        formula: ``formula(logits, target, **options)`` returns the loss of every row.
        logits: ``(N, K, *)``; float16 and bfloat16 are computed in float32.
        target: ``(N, *)`` int64 labels in [0, K), or ``(N, K, *)`` probabilities.
        weight: ``(N, *)``; float32 or float64.
        options: Further arguments of the formula; of one in the shape of the logits, each piece has
            its own.
        compile: Use ``torch.compile``. Where that does not work: eager, with one warning.

    Returns:
        A scalar in the dtype of `weight`.
    """
    inputs = [x for x in (target, weight, *options.values()) if torch.is_tensor(x)]
    kept = torch.is_grad_enabled() and logits.requires_grad and not torch.compiler.is_compiling()
    if not kept or any(x.requires_grad for x in inputs):
        return total(formula, logits, target, weight, options)
    function = in_one if compile else in_pieces
    both = functools.partial(function, formula, target, weight, options)
    return WithGradient.apply(logits, both)[0]


class WithGradient(torch.autograd.Function):
    """Calls a function that returns its value, the gradient by the logits, and what has none."""

    @staticmethod
    def forward(ctx, logits, function):
        value, grad, *more = function(logits.detach())
        ctx.save_for_backward(grad)
        ctx.dtype = logits.dtype
        ctx.mark_non_differentiable(*more)
        return value, *more

    @staticmethod
    def backward(ctx, grad_output, *_):
        if torch.is_grad_enabled():
            raise RuntimeError("for create_graph, take the mean of what reduction='none' gives")
        (grad,) = ctx.saved_tensors
        # Looking at the factor would make a GPU wait.
        if grad_output.device.type != 'cpu' or grad_output != 1:
            grad = grad * grad_output
        return grad.to(ctx.dtype), None


def total(formula, logits, target, weight, options) -> Tensor:
    """Return the weighted sum."""
    return (formula(without_unweighted(logits, weight), target, **options) * weight).sum()


def without_unweighted(logits: Tensor, weight: Tensor) -> Tensor:
    """Return logits of which a row without weight adds nothing, not even a NaN."""
    logits = at_least_single(logits)
    if logits.device.type == 'cpu' and not torch.compiler.is_compiling() and weight.all():
        return logits
    return torch.where((weight != 0).unsqueeze(1), logits, 0)


def in_pieces(formula, target, weight, options, logits) -> tuple[Tensor, Tensor]:
    """Return value and gradient by autograd, a piece of the rows at a time."""
    shape, soft = logits.shape, target.is_floating_point()
    maps = [key for key, x in options.items() if torch.is_tensor(x) and x.shape == shape]
    if logits.ndim > 2:
        # Pixels go their own ways; and softmax is several times slower on (N, K, 1) than on (N, K).
        logits, weight = logits.flatten(2), weight.flatten(1)
        target = target.flatten(2 if soft else 1)
        options = options | {key: options[key].flatten(2) for key in maps}
    grad, value = torch.empty_like(logits, dtype=kept_dtype(logits)), weight.new_zeros(())
    for rows in _pieces(logits.shape, PIECE.get(logits.device.type, GPU_PIECE)):
        dense = (rows[0], slice(None), *rows[1:])
        mine = options | {key: options[key][dense] for key in maps}
        with torch.enable_grad():
            part = at_least_single(logits[dense]).detach().requires_grad_()
            found = total(formula, part, target[dense if soft else rows], weight[rows], mine)
        grad[dense] = torch.autograd.grad(found, part)[0]
        value += found.detach()
    return value, grad.reshape(shape)


def _pieces(shape: torch.Size, limit: int) -> Iterator[tuple[slice, ...]]:
    """Cut N, and P of ``(N, K, P)``, into slices of about `limit` logits."""
    samples, pixels = (max(limit // max(size, 1), 1) for size in (shape[1:].numel(), shape[1]))
    steps = zip(shape[::2], (samples, pixels), strict=False)
    return product(*([slice(at, at + step) for at in range(0, n, step)] for n, step in steps))


def in_one(formula, target, weight, options, logits) -> tuple[Tensor, Tensor]:
    """Return value and gradient by one compiled kernel; eagerly where the compiler fails."""
    if formula in _not_compilable:
        return in_pieces(formula, target, weight, options, logits)
    try:
        return _kernel_of(formula)(target, weight, options, logits)
    except Exception as error:  # what a missing compiler raises differs from release to release
        result = in_pieces(formula, target, weight, options, logits)  # raises its own errors
        _not_compilable.add(formula)
        why = f'torch.compile does not work here for {formula.__name__}, so it runs eagerly'
        warnings.warn(f'{why}: {type(error).__name__}: {error}', stacklevel=2)
        return result


@functools.cache
def _kernel_of(formula: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    def both(target, weight, options, logits):
        function = torch.func.grad_and_value(total, argnums=1)
        grad, value = function(formula, at_least_single(logits), target, weight, options)
        return value, grad.to(kept_dtype(logits))

    # torch counts what it compiled by code object, which all formulas would share.
    both.__code__ = both.__code__.replace(co_name=f'value_and_gradient_of_{formula.__name__}')
    # Left to itself the compiler computes focal's factor anew for each class of a pixel: 1.00
    # of cross-entropy's time at 4×21×256×256, where this takes 0.59.
    return torch.compile(both, options={'realize_opcount_threshold': 25})


def kept_dtype(logits: Tensor) -> torch.dtype:
    """Return the dtype of the gradient between the passes."""
    # The gradient of a mean over many pixels underflows in float16, until mixed precision's loss
    # scale multiplies it in the backward pass.
    return torch.float32 if logits.dtype == torch.float16 else logits.dtype
