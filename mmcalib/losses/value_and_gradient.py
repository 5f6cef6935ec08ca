"""The weighted sum of a loss over all rows, computed together with its gradient."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from itertools import product

import torch
from torch import Tensor

from mmcalib.tensors import at_least_single, can_read, is_transformed

# Logits per piece: few enough for the temporaries of a formula to stay in a CPU's cache, and enough
# for a GPU to be busy with one piece.
PIECE = {'cpu': 1 << 19}
GPU_PIECE = 1 << 25

# Whether this backward pass was called with retain_graph. Older versions of PyTorch do not say: the
# gradient is then always copied.
_is_graph_kept = getattr(torch._C._autograd, '_get_current_graph_task_keep_graph', lambda: True)
_not_compilable = set()
_gradient_functions: dict[Callable, Callable] = {}
_compilable_gradients = set()


def register_gradient(
    formula: Callable[..., Tensor], *, compilable: bool = False
) -> Callable[[Callable], Callable]:
    """Register a function that computes a formula together with its gradient.

    An eager sum over labels on a CPU calls it in place of autograd, which makes MbLS of 4096×1000
    five times faster; so does the kernel of ``compile=True`` on a CPU if it is `compilable`. All
    else calls the formula: soft targets, ``reduction='none'``, GPUs, compiled models.

    ``function(logits, target, weight, out, **options)`` takes a piece of the logits, int64 labels,
    the weights of the rows and all options of the formula. It returns the loss of every row, and
    overwrites `out` with the gradient of their weighted sum by the logits. For a class masked with
    -inf it may return an infinite or NaN loss: then autograd computes that piece.

    A `compilable` one has plain operations only, without autograd. With AVX2, compiled label
    smoothing of 4096×1000 takes 0.66 of cross-entropy's time by its gradient and 1.02 by its
    formula, where the eager one takes 0.90.
    """

    def register(function: Callable) -> Callable:
        _gradient_functions[formula] = function
        if compilable:
            _compilable_gradients.add(function)
        return function

    return register


def weighted_sum(formula, logits, target, weight, options, compile=False) -> Tensor:
    r"""Return :math:`\sum_i w_i \ell_i` of a formula for row losses.

    The gradient is computed in the forward pass, and only it is kept for the backward pass. Eager,
    this goes piece by piece, by a registered function or else by autograd; compiled, one kernel
    gives value and gradient. Where the target or the weights require a gradient, inside a compiled
    model, and inside ``torch.func.grad`` or ``torch.vmap``, it is plain autograd's.

    Args:
        formula: ``formula(logits, target, **options)`` returns the loss of every row.
        logits: ``(N, K, *)``; float16 and bfloat16 are computed in float32.
        target: ``(N, *)`` int64 labels in [0, K), or ``(N, K, *)`` probabilities.
        weight: ``(N, *)``; float32 or float64.
        options: Further arguments of the formula. A tensor in the shape of the logits is cut into
            the same pieces.
        compile: Use ``torch.compile``. Where that does not work: eager, with one warning.

    Returns:
        A scalar in the dtype of `weight`.
    """
    inputs = [x for x in (target, weight, *options.values()) if torch.is_tensor(x)]
    is_training = torch.is_grad_enabled() and logits.requires_grad
    is_plain = not is_training or torch.compiler.is_compiling() or is_transformed()
    if is_plain or any(x.requires_grad for x in inputs):
        return plain_weighted_sum(formula, logits, target, weight, options)
    differentiate = differentiate_compiled if compile else differentiate_in_pieces
    function = functools.partial(differentiate, formula, target, weight, options)
    return WithGradient.apply(logits, function)[0]


class WithGradient(torch.autograd.Function):
    """Value of a function of the logits that computes its gradient in the forward pass.

    The function returns the value, its gradient, and any number of tensors without a gradient.
    """

    @staticmethod
    def forward(ctx, logits, function):
        value, grad, *others = function(logits.detach())
        ctx.save_for_backward(grad)
        ctx.dtype = logits.dtype
        ctx.mark_non_differentiable(*others)
        return value, *others

    @staticmethod
    def backward(ctx, grad_output, *_):
        if torch.is_grad_enabled():
            raise RuntimeError("for create_graph, take the mean of what reduction='none' gives")
        (grad,) = ctx.saved_tensors
        if not is_one(grad_output) or _is_graph_kept():
            # The receiver may change its gradient, and the kept one is that of the next pass.
            grad = grad * grad_output
        return grad.to(ctx.dtype), None


def is_one(factor: Tensor) -> bool:
    """Return whether a number is known to be 1."""
    if factor.device.type != 'cpu' or torch.compiler.is_compiling():
        return False  # Looking at the number would make a GPU wait, and break a compiled graph.
    try:
        return bool(factor == 1)
    except RuntimeError:  # With is_grads_batched it stands for many numbers.
        return False


def plain_weighted_sum(formula, logits, target, weight, options) -> Tensor:
    """Return the weighted sum of the row losses by plain operations."""
    return (formula(zero_unweighted(logits, weight), target, **options) * weight).sum()


def zero_unweighted(logits: Tensor, weight: Tensor) -> Tensor:
    """Return logits that are 0 in rows without weight, so that not even a NaN there counts."""
    logits = at_least_single(logits)
    if can_read(weight) and weight.all():
        return logits
    return torch.where((weight != 0).unsqueeze(1), logits, 0)


def differentiate_in_pieces(formula, target, weight, options, logits) -> tuple[Tensor, Tensor]:
    """Return value and gradient of the weighted sum, computed a piece of the rows at a time."""
    shape = logits.shape
    is_soft = target.is_floating_point()
    maps = [name for name, x in options.items() if torch.is_tensor(x) and x.shape == shape]
    if logits.ndim > 2:
        # Maps are cut along their pixels. Rows (N, K) stay as they are, since a softmax is several
        # times slower on (N, K, 1).
        logits = logits.flatten(2)
        weight = weight.flatten(1)
        target = target.flatten(2 if is_soft else 1)
        options = options | {name: options[name].flatten(2) for name in maps}
    grad = torch.empty_like(logits, dtype=gradient_dtype(logits))
    value = weight.new_zeros(())
    gradient_function = registered_gradient(formula, logits, target)
    for rows in _piece_slices(logits.shape, PIECE.get(logits.device.type, GPU_PIECE)):
        with_classes = (rows[0], slice(None), *rows[1:])
        piece_target = target[with_classes] if is_soft else target[rows]
        piece_options = options | {name: options[name][with_classes] for name in maps}
        piece = at_least_single(logits[with_classes])
        out = grad[with_classes]
        arguments = (piece, piece_target, weight[rows], piece_options, out)
        piece_value = None
        if gradient_function is not None:
            piece_value = write_registered_gradient(gradient_function, *arguments)
        if piece_value is None or not piece_value.isfinite():
            piece_value = write_autograd_gradient(formula, *arguments)
        value += piece_value
    return value, grad.reshape(shape)


def registered_gradient(formula, logits: Tensor, target: Tensor) -> Callable | None:
    """Return the function of :func:`register_gradient` for these inputs, None if there is none."""
    # The logits of a GPU cannot be found finite without waiting for it.
    if logits.device.type != 'cpu' or target.is_floating_point() or not inspect.isfunction(formula):
        return None
    return _gradient_functions.get(formula)


def write_registered_gradient(gradient_function, logits, target, weight, options, out) -> Tensor:
    """Return the weighted sum by a function of :func:`register_gradient`; fill `out`."""
    if out.dtype == logits.dtype:
        rows = gradient_function(logits, target, weight, out, **options)
    else:
        # A gradient in half precision is rounded once, at its end.
        exact = torch.empty_like(logits)
        rows = gradient_function(logits, target, weight, exact, **options)
        out.copy_(exact)
    return (rows * weight).sum()


def write_autograd_gradient(formula, logits, target, weight, options, out) -> Tensor:
    """Return the weighted sum of the formula; fill `out` with its gradient by autograd."""
    with torch.enable_grad():
        logits = logits.detach().requires_grad_()
        value = plain_weighted_sum(formula, logits, target, weight, options)
    out.copy_(torch.autograd.grad(value, logits)[0])
    return value.detach()


def _piece_slices(shape: torch.Size, limit: int) -> Iterator[tuple[slice, ...]]:
    """Cut N, and P of ``(N, K, P)``, into slices of about `limit` logits."""
    samples = _slices(shape[0], limit // max(shape[1:].numel(), 1))
    if len(shape) == 2:
        return product(samples)
    return product(samples, _slices(shape[2], limit // max(shape[1], 1)))


def _slices(size: int, step: int) -> list[slice]:
    """Cut an axis into slices of `step`, or of 1 if that is 0."""
    step = max(step, 1)
    return [slice(start, start + step) for start in range(0, size, step)]


def differentiate_compiled(formula, target, weight, options, logits) -> tuple[Tensor, Tensor]:
    """Return value and gradient by one compiled kernel; eagerly where the compiler fails."""
    if formula in _not_compilable:
        return differentiate_in_pieces(formula, target, weight, options, logits)
    gradient_function = registered_gradient(formula, logits, target)
    try:
        if gradient_function in _compilable_gradients:
            value, grad = _compiled_kernel(gradient_function)(target, weight, options, logits)
            if value.isfinite():
                return value, grad
        return _compiled_kernel(formula)(target, weight, options, logits)
    except Exception as error:  # The error of a missing compiler differs from release to release.
        # Bad input raises its own error here, so the compiler is not blamed for it.
        value_and_gradient = differentiate_in_pieces(formula, target, weight, options, logits)
        _not_compilable.add(formula)
        message = f'torch.compile does not work here for {formula.__name__}, so it runs eagerly'
        warnings.warn(f'{message}: {type(error).__name__}: {error}', stacklevel=2)
        return value_and_gradient


@functools.cache
def _compiled_kernel(function: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the kernel of a formula, or of a function of :func:`register_gradient`."""
    is_gradient = function in _compilable_gradients

    def value_and_gradient(target, weight, options, logits):
        exact_logits = at_least_single(logits)
        if is_gradient:
            grad = torch.empty_like(exact_logits)
            value = (function(exact_logits, target, weight, grad, **options) * weight).sum()
        else:
            differentiate = torch.func.grad_and_value(plain_weighted_sum, argnums=1)
            grad, value = differentiate(function, exact_logits, target, weight, options)
        return value, grad.to(gradient_dtype(logits))

    # torch counts compilations by code object, which all formulas would share.
    value_and_gradient.__code__ = value_and_gradient.__code__.replace(
        co_name=f'value_and_gradient_of_{function.__name__}'
    )
    # Left to itself the compiler computes focal's factor anew for each class of a pixel: 1.00
    # of cross-entropy's time at 4×21×256×256, where this takes 0.59.
    return torch.compile(value_and_gradient, options={'realize_opcount_threshold': 25})


def gradient_dtype(logits: Tensor) -> torch.dtype:
    """Return the dtype in which the gradient is kept between the passes."""
    # The gradient of a mean over many pixels underflows in float16, until mixed precision's loss
    # scale multiplies it in the backward pass.
    return torch.float32 if logits.dtype == torch.float16 else logits.dtype
