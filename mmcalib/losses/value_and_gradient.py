"""The weighted sum of a loss over all rows, computed together with its gradient."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Logits per piece: few enough for the temporaries of a formula to stay in a CPU's cache, and enough
# for a GPU to be busy with one piece.
PIECE = {'cpu': 1 << 19}
GPU_PIECE = 1 << 25

_compiler_works = True
_seen_numbers: dict[Callable, list[dict]] = {}


def weighted_sum(
    formula: Callable[..., Tensor],
    logits: Tensor,
    target: Tensor,
    weight: Tensor,
    options: Mapping,
    *,
    compile: bool = False,
) -> Tensor:
    r"""Return :math:`\sum_i w_i \ell_i` of a formula for row losses.

    The gradient is computed in the forward pass, and only it is kept for the backward pass: no
    softmax and no other temporary of the size of the logits stays. Eager, this goes piece by piece
    in the formula's own autograd; compiled, one kernel gives value and gradient.

    Args:
        formula: ``formula(logits, target, **options)`` returns the loss of every row.
        logits: ``(N, K, *)``; float16 and bfloat16 are computed in float32.
        target: ``(N, *)`` int64 labels in [0, K), or ``(N, K, *)`` probabilities.
        weight: ``(N, *)``, or one for all rows; float32 or float64.
        options: Further arguments of the formula.
        compile: Use ``torch.compile``. Where that does not work: eager, with one warning.

    Returns:
        A scalar in the dtype of `weight`.
    """
    wanted = torch.is_grad_enabled() and logits.requires_grad
    # Inside a compiled model this joins the model's own kernels.
    if not wanted or torch.compiler.is_compiling():
        return _total(formula, logits, target, weight, options)
    return _WeightedSum.apply(logits, formula, target, weight, options, compile)


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, formula, target, weight, options, compile):
        run = _compiled if compile and _compiler_works else _eager
        value, grad = run(formula, logits.detach(), target, weight, options)
        ctx.save_for_backward(grad)
        ctx.dtype = logits.dtype
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (grad,) = ctx.saved_tensors
        # Looking at the factor would make a GPU wait.
        if grad_output.device.type != 'cpu' or grad_output != 1:
            grad = grad * grad_output
        return grad.to(ctx.dtype), None, None, None, None, None


def _total(formula, logits, target, weight, options) -> Tensor:
    rows = formula(upcast(logits), target, **options)
    return (rows * weight).sum()


def upcast(logits: Tensor) -> Tensor:
    """Return half-precision logits in float32, others as they are."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def _grad_dtype(logits: Tensor) -> torch.dtype:
    # The gradient of a mean over many pixels underflows in float16, until mixed precision's loss
    # scale multiplies it in the backward pass.
    return torch.float32 if logits.dtype == torch.float16 else logits.dtype


def _eager(formula, logits, target, weight, options) -> tuple[Tensor, Tensor]:
    shape = logits.shape
    if logits.ndim > 2:  # softmax is several times slower on (N, K, 1) than on (N, K)
        logits, weight = logits.flatten(2), weight.flatten(1) if weight.ndim else weight
        target = target.flatten(2 if target.is_floating_point() else 1)
    grad = torch.empty_like(logits, dtype=_grad_dtype(logits))
    value = weight.new_zeros(())
    for rows in _pieces(logits.shape, PIECE.get(logits.device.type, GPU_PIECE)):
        dense = rows if logits.ndim == 2 else (rows[0], slice(None), rows[1])
        with torch.enable_grad():
            piece = upcast(logits[dense]).detach().requires_grad_()
            labels = target[dense if target.is_floating_point() else rows]
            total = _total(formula, piece, labels, weight[rows] if weight.ndim else weight, options)
        (grad[dense],) = torch.autograd.grad(total, piece)
        value += total.detach()
    return value, grad.view(shape) if grad.is_contiguous() else grad.reshape(shape)


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


def _compiled(formula, logits, target, weight, options) -> tuple[Tensor, Tensor]:
    global _compiler_works
    try:
        return _kernel(formula)(logits, target, weight, _stable(formula, options))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # what a missing compiler raises differs from release to release
        _compiler_works = False
        warnings.warn(
            'torch.compile does not work here, so the losses with compile=True run eagerly: '
            f'{type(error).__name__}: {error}',
            stacklevel=2,
        )
        return _eager(formula, logits, target, weight, options)


def _stable(formula: Callable[..., Tensor], options: Mapping) -> dict:
    """Return the options so that a schedule of a number does not compile the kernel at each step.

    Numbers are compiled in, which is faster, for the first two sets of them that a formula sees.
    """
    numbers = {key: value for key, value in options.items() if isinstance(value, (int, float))}
    seen = _seen_numbers.setdefault(formula, [])
    if numbers not in seen and len(seen) < 2:
        seen.append(numbers)
    if numbers in seen:
        return dict(options)
    return {key: torch.tensor(float(v)) if key in numbers else v for key, v in options.items()}


@functools.cache
def _kernel(formula: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    def value_and_grad(logits, target, weight, options):
        grad, value = torch.func.grad_and_value(_total, argnums=1)(
            formula, upcast(logits), target, weight, options
        )
        return value, grad.to(_grad_dtype(logits))

    # Left to itself the compiler computes focal's factor anew for each class of a pixel.
    return torch.compile(value_and_grad, options={'realize_opcount_threshold': 25})
