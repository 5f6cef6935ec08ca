"""Checks of tensors, types of float, and the states of random number generators."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmcalib.misfits import refuse

# A probability may be above 1, or below 0, by this much.
TOLERANCE = 1e-6
# The sum of a half-precision softmax may differ from 1 by this much.
SUM_TOLERANCE = 1e-2
# Rounded probabilities have sums with such errors.
ROUNDED_ERROR = 2e-2
# An error lists so many wrong labels.
MOST_EXAMPLES = 5

# torch.autograd.Function asks it before each call.
_is_transform_active = getattr(torch._C, '_are_functorch_transforms_active', lambda: False)


def check_labels(
    labels: Tensor,
    num_classes: int,
    *,
    name: str = 'labels',
    door: str = 'arrays',
    ignore_index: int | None = None,
    **facts: Any,
) -> None:
    """Refuse labels outside [0, K), which are counted and named.

    Args:
        labels: Integers of any shape, without those that are ignored.
        num_classes: K.
        name: Name of the labels in the error.
        door: See :func:`~mmcalib.misfits.explain`.
        ignore_index: The label of what is left out; None if nothing is.
        facts: Numbers and texts that a remedy of the door names.
    """
    if not labels.numel():
        return
    # Stacked, both values come from a GPU in one transfer.
    lowest, highest = as_list(torch.stack(labels.aminmax()))
    if lowest >= 0 and highest < num_classes:
        return
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    distinct = as_list(wrong.unique())
    examples = [str(label) for label in distinct[:MOST_EXAMPLES]]
    if len(distinct) > MOST_EXAMPLES:
        examples.append('…')
    refuse(
        'class',
        f'{name} has {len(wrong)} labels outside [0, {num_classes}): {", ".join(examples)}',
        door=door,
        labels=labels,
        num_classes=num_classes,
        last=num_classes - 1,
        ignore_index=ignore_index,
        **facts,
    )


def check_finite(scores: Tensor, name: str) -> None:
    """Refuse values that are NaN or infinite."""
    # One sum is several times cheaper than a test per value; it is not finite if any value is not.
    if scores.sum().isfinite():
        return
    num_wrong = int((~scores.isfinite()).sum())
    if not num_wrong:  # Finite values may have an infinite sum.
        return
    are_masked = int((scores == -float('inf')).sum()) == num_wrong
    problem = 'values of -inf' if are_masked else 'NaN or infinite values'
    fact = f'{name} has {num_wrong} {problem} out of {scores.numel()}'
    refuse('finite', fact, are_masked=are_masked)


def check_softmax_logits(
    logits: Tensor, name: str, *, class_axis: int, labels: Tensor | None = None
) -> None:
    """Refuse logits that are NaN or infinite, but for those of masked classes.

    A logit of -inf masks its class, if another class of the prediction is not masked.

    Args:
        logits: Logits of a softmax, or of a sigmoid if there is one.
        name: Name of the logits in the error.
        class_axis: The axis of the classes.
        labels: True classes, which may not be masked; other values than classes do not count.
    """
    # As in check_finite, one sum spares nearly all logits the tests.
    if logits.sum().isfinite():
        return
    is_masked = logits == -float('inf')
    is_masked &= ~is_masked.all(dim=class_axis, keepdim=True)
    check_finite(logits.masked_fill(is_masked, 0), name)
    if labels is None:
        return
    valid = (labels >= 0) & (labels < logits.shape[class_axis])
    index = labels.masked_fill(~valid, 0).unsqueeze(class_axis)
    is_label_masked = is_masked.gather(class_axis, index).squeeze(class_axis) & valid
    num_masked = int(is_label_masked.sum())
    if num_masked:
        refuse('masked', f'{name} is -inf for {num_masked} of {int(valid.sum())} labels')


def check_range(values: Tensor, name: str, *, door: str = 'arrays') -> None:
    """Refuse values that are not from 0 to 1."""
    if not values.numel():
        return
    # One pass is twenty times cheaper than comparing all values. With a NaN, both are NaN.
    lowest, highest = values.aminmax()
    if lowest >= 0 and highest <= 1 + TOLERANCE:
        return
    is_inside = (values >= 0) & (values <= 1 + TOLERANCE)
    outside = values[~is_inside]
    first = outside[0].item()
    refuse(
        'range',
        f'{name} has {len(outside)} of {values.numel()} values outside [0, 1], such as {first:.7g}',
        door=door,
        is_nan=math.isnan(first),
    )


def check_probabilities(
    probs: Tensor, name: str, *, door: str = 'arrays', scores: Tensor | None = None
) -> None:
    """Refuse ``(K, *)`` values that are not probabilities of K classes.

    Args:
        probs: The values.
        name: Their name in the error.
        door: See :func:`~mmcalib.misfits.explain`.
        scores: The array ``(N, K, *)`` that they are from, if a remedy may ask for its shape.
    """
    check_range(probs, name, door=door)
    total = probs.sum(dim=0)
    wrong = total[(total - 1).abs() > SUM_TOLERANCE]
    if len(wrong):
        refuse(
            'sum',
            f'{name} has {len(wrong)} of {total.numel()} rows that do not sum to 1, such as '
            f'{wrong[0].item():.7g}',
            door=door,
            scores=scores,
            name=name,
            is_rounded=bool((wrong - 1).abs().max() <= ROUNDED_ERROR),
        )


def at_least_single(values: Tensor) -> Tensor:
    """Return half-precision values in float32, others as they are."""
    return values.float() if values.is_floating_point() and values.element_size() < 4 else values


def plain_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor without a subclass that follows its operations, such as MONAI's MetaTensor.

    A subclass that dispatches them itself stays, since PyTorch before 2.7 cannot take it off.
    """
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return tensor
    return tensor.as_subclass(Tensor)


def on_float64_device(values: Tensor) -> Tensor:
    """Return values where they are, or on the CPU if their device has no float64, as Apple's MPS.

    It prevents a TypeError wherever a sum, a fit or a scaling is computed in float64.
    """
    try:
        values.new_ones((), dtype=torch.float64)
    except (TypeError, RuntimeError):
        return values.cpu()
    return values


def is_exporting() -> bool:
    """Return whether ``torch.export`` or ``torch.onnx`` traces this call."""
    if torch.onnx.is_in_onnx_export():
        return True
    # PyTorch before 2.7 does not tell of torch.export.
    return hasattr(torch.compiler, 'is_exporting') and torch.compiler.is_exporting()


def is_transformed() -> bool:
    """Return whether this runs inside a transform of ``torch.func``, such as ``grad`` or ``vmap``.

    An ``autograd.Function`` whose forward pass makes the context does not work there.
    """
    return _is_transform_active()


def is_batched(values: Tensor) -> bool:
    """Return whether a tensor stands for those of many calls, as inside ``torch.vmap``.

    Python can look at no value of it, not even for an ``if``.
    """
    if not is_transformed():
        return False
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(values):
        if functorch.is_batchedtensor(values):
            return True
        values = functorch.get_unwrapped(values)
    return False


def as_list(values: Tensor) -> list:
    """Return the numbers of ``(N,)`` values."""
    if is_transformed():  # PyTorch 2.6 has no tolist there.
        return [value.item() for value in values]
    return values.tolist()


def can_read(values: Tensor) -> bool:
    """Return whether Python can look at values at once: on a CPU, neither compiled nor batched."""
    if values.device.type != 'cpu' or torch.compiler.is_compiling():
        return False
    return not is_batched(values)


def smallest_probability(dtype: torch.dtype) -> float:
    """Return the probability that stands for one that its type of float has rounded to 0."""
    if dtype == torch.float16:
        return 2.0**-25  # This is half of the least float16.
    return torch.finfo(dtype).tiny  # Some devices flush a smaller number to 0.


@contextmanager
def unchanged_randomness() -> Iterator[None]:
    """Put back the states of the random number generators of Python, NumPy and PyTorch."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    torch_state = torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)


@contextmanager
def seeded(seed: int, device: torch.device | None) -> Iterator[None]:
    """Draw from a seed on the CPU and on a device, whose random numbers then go on as before.

    ``torch.manual_seed`` would seed the generators of all devices, which nothing puts back.
    """
    is_gpu = device is not None and device.type == 'cuda'
    with torch.random.fork_rng([device] if is_gpu else []):
        torch.default_generator.manual_seed(seed)
        if is_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        elif device is not None and device.type == 'mps':
            torch.mps.manual_seed(seed)
        yield
