"""Value and gradient of a formula in one kernel of ``torch.compile``."""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from mmcalib.inputs import at_least_single


def total_of(formula, logits, target, weight, options) -> Tensor:
    """Return the weighted sum by the formula, in plain operations."""
    return (formula(at_least_single(logits), target, **options) * weight).sum()


def kept_dtype(logits: Tensor) -> torch.dtype:
    """Return what the gradient is kept in between the passes."""
    # The gradient of a mean over many pixels underflows in float16, until mixed precision's loss
    # scale multiplies it in the backward pass.
    return torch.float32 if logits.dtype == torch.float16 else logits.dtype


@functools.cache
def kernel_of(formula: Callable[..., Tensor]) -> CompiledKernel:
    """Return the one kernel of a formula."""
    return CompiledKernel(formula)


class CompiledKernel:
    """A formula's weighted sum and its gradient by the logits, compiled.

    It is compiled anew for few things, so that torch's limit of 8 is out of reach whatever a
    schedule does and however many heads share a loss: a first shape and any other, hard and soft
    targets, and the numbers of the first call and any others. The first are compiled in, which for
    MbLS at 4×21×256×256 takes 0.72 of cross-entropy's time where tensors take 0.89.
    """

    def __init__(self, formula: Callable[..., Tensor]) -> None:
        def value_and_grad(logits, target, weight, options):
            grad, value = torch.func.grad_and_value(total_of, argnums=1)(
                formula, at_least_single(logits), target, weight, options
            )
            return value, grad.to(kept_dtype(logits))

        # torch counts what it compiled by code object, which all formulas would share.
        name = f'value_and_grad_of_{formula.__name__}'
        code = value_and_grad.__code__.replace(co_name=name)
        self._function = types.FunctionType(
            code, value_and_grad.__globals__, name, closure=value_and_grad.__closure__
        )
        self._formula = formula
        self._compiled = None
        self._first_numbers = None
        self._works = True

    def __call__(
        self, logits: Tensor, target: Tensor, weight: Tensor, options: Mapping
    ) -> tuple[Tensor, Tensor] | None:
        """Return value and gradient, None where the compiler does not work."""
        if not self._works:
            return None
        try:
            if self._compiled is None:
                # Left to itself the compiler computes focal's factor anew for each class of a
                # pixel: 1.00 of cross-entropy's time at 4×21×256×256, where this takes 0.59.
                self._compiled = torch.compile(
                    self._function, options={'realize_opcount_threshold': 25}
                )
            return self._compiled(logits, target, weight, self._steady(options))
        except torch.OutOfMemoryError:
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

    def _steady(self, options: Mapping) -> dict:
        """Return the options with other numbers than the first as tensors."""
        numbers = {key: value for key, value in options.items() if isinstance(value, (int, float))}
        if self._first_numbers is None:
            self._first_numbers = numbers
        if numbers == self._first_numbers:
            return dict(options)
        return {key: torch.tensor(float(v)) if key in numbers else v for key, v in options.items()}
