"""Computing in full single precision for a while, whatever PyTorch was told to round."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch


@contextmanager
def full_precision() -> Iterator[None]:
    """Turn TF32 and bfloat16 off inside matrix products and convolutions of float32.

    Their 10 or 7 bits would hide whether two layers compute the same.
    """
    with ExitStack() as after:
        for holder, name, value in _switches():
            before = getattr(holder, name)
            if before != value:  # to write the same again would be more than nothing, to PyTorch
                setattr(holder, name, value)
                after.callback(setattr, holder, name, before)
        yield


def _switches() -> list[tuple[Any, str, Any]]:
    """Return what to set, as (object, attribute, value for full precision).

    PyTorch has an older and, since 2.9, a newer set of switches for GPUs. It raises an error where
    the older ones are read after the newer ones were set, so those are taken that were used.
    """
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    switches = [(products, 'allow_tf32', False), (cudnn, 'allow_tf32', False)]
    try:
        for holder, name, _ in switches:
            getattr(holder, name)
    except RuntimeError:
        newer = (products, cudnn.conv, cudnn.rnn)
        switches = [(operation, 'fp32_precision', 'ieee') for operation in newer]
    cpu = torch.backends.mkldnn
    if hasattr(cpu, 'matmul'):  # the CPU has the newer ones alone
        switches += [(op, 'fp32_precision', 'ieee') for op in (cpu.matmul, cpu.conv, cpu.rnn)]
    return switches
