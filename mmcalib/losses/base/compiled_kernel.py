"""Value and gradient of a formula in one kernel of ``torch.compile``."""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from mmcalib.checks import at_least_single
from mmcalib.losses.base.call_checks import counted

# How many sets of numbers are compiled in.
CONSTANTS = 2


def total_of(formula, logits, target, weight, options) -> Tensor:
    """Return the weighted sum by the formula, in plain operations."""
    return (formula(counted(logits, weight), target, **options) * weight).sum()


def kept_dtype(logits: Tensor) -> torch.dtype:
    """Return the dtype of the gradient between the passes."""
    # The gradient of a mean over many pixels underflows in float16, until mixed precision's loss
    # scale multiplies it in the backward pass.
    return torch.float32 if logits.dtype == torch.float16 else logits.dtype


@functools.cache
def kernel_of(formula: Callable[..., Tensor]) -> CompiledKernel:
    """Return the one kernel of a formula."""
    return CompiledKernel(formula)


class CompiledKernel:
    """A formula's weighted sum and its gradient by the logits, compiled.

    The first two sets of numbers that a formula is called with have versions of their own, in which
    they are constants: MbLS at 4×21×256×256 takes 0.78 of cross-entropy's time so, 1.10 with
    tensors. Any others, as of a schedule, share a third version. Each is compiled anew for a few
    shapes and for hard and soft targets, which torch's limit of 8 allows.
    """

    def __init__(self, formula: Callable[..., Tensor]) -> None:
        self._formula = formula
        self._versions = []  # pairs of numbers, None for any, and the compiled function
        self._works = True

    def __call__(
        self, logits: Tensor, target: Tensor, weight: Tensor, options: Mapping
    ) -> tuple[Tensor, Tensor] | None:
        """Return value and gradient, None where the compiler does not work."""
        if not self._works:
            return None
        try:
            version, options = self._version(options)
            return version(logits, target, weight, options)
        except torch.cuda.OutOfMemoryError:  # the name that PyTorch before 2.5 has too
            raise
        except Exception as error:  # what a missing compiler raises differs from release to release
            # An error of the formula or of the device is no compiler's: it is raised here again.
            total_of(self._formula, logits, target, weight, options)
            self._works = False
            warnings.warn(
                f'torch.compile does not work here for {self._formula.__name__}, so it runs '
                f'eagerly: {type(error).__name__}: {error}',
                stacklevel=2,
            )
            return None

    def _version(self, options: Mapping) -> tuple[Callable, dict]:
        """Return a compiled function, and the options with their numbers as it wants them.

        Switches and integers choose between formulas: they stay what they are.
        """
        numbers = {key: value for key, value in options.items() if isinstance(value, float)}
        for known, version in self._versions:
            if known == numbers:
                return version, dict(options)
        constants = len(self._versions) < CONSTANTS
        if constants or len(self._versions) == CONSTANTS:
            self._versions.append((numbers if constants else None, self._compile()))
        _, version = self._versions[-1]
        if not constants:
            options = {
                key: torch.tensor(float(x)) if key in numbers else x for key, x in options.items()
            }
        return version, dict(options)

    def _compile(self) -> Callable[..., tuple[Tensor, Tensor]]:
        formula = self._formula

        def value_and_grad(logits, target, weight, options):
            grad, value = torch.func.grad_and_value(total_of, argnums=1)(
                formula, at_least_single(logits), target, weight, options
            )
            return value, grad.to(kept_dtype(logits))

        # torch counts what it compiled by code object, which all versions would share.
        name = f'value_and_grad_of_{formula.__name__}_{len(self._versions)}'
        function = types.FunctionType(
            value_and_grad.__code__.replace(co_name=name),
            value_and_grad.__globals__,
            name,
            closure=value_and_grad.__closure__,
        )
        # Left to itself the compiler computes focal's factor anew for each class of a pixel: 1.00
        # of cross-entropy's time at 4×21×256×256, where this takes 0.59.
        return torch.compile(function, options={'realize_opcount_threshold': 25})
