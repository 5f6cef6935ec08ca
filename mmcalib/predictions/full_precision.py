"""Computation in full single precision, whatever PyTorch was told to round."""

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
    with ExitStack() as cleanup:
        for holder, name, full_value in _switches():
            value_before = getattr(holder, name)
            # For PyTorch, writing the same value again would choose one set of switches.
            if value_before != full_value:
                setattr(holder, name, full_value)
                cleanup.callback(setattr, holder, name, value_before)
        yield


def _switches() -> list[tuple[Any, str, Any]]:
    """Return the switches, as (object, attribute, value for full precision).

    PyTorch has an older and, since 2.9, a newer set of switches for GPUs. It raises an error where
    the older ones are read after the newer ones were set, so this returns the set that was used.
    """
    products = torch.backends.cuda.matmul
    cudnn = torch.backends.cudnn
    switches = [(products, 'allow_tf32', False), (cudnn, 'allow_tf32', False)]
    try:
        for holder, name, _ in switches:
            getattr(holder, name)
    except RuntimeError:
        switches = []
        for operation in (products, cudnn.conv, cudnn.rnn):
            switches.append((operation, 'fp32_precision', 'ieee'))
    cpu = torch.backends.mkldnn
    if hasattr(cpu, 'matmul'):  # The CPU has the newer set alone.
        for operation in (cpu.matmul, cpu.conv, cpu.rnn):
            switches.append((operation, 'fp32_precision', 'ieee'))
    return switches
