"""Dropout that is random while a model predicts, and nothing else."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd


def dropout_layers(model: nn.Module) -> list[nn.Module]:
    """Return the dropout layers that a model predicts with, of a probability above 0.

    Auxiliary heads predict nothing. Dropout that a layer computes without a layer of its own, as
    ``torch.nn.MultiheadAttention`` does, and stochastic depth are no such layers.
    """
    return [
        module
        for name, module in model.named_modules()
        if isinstance(module, _DropoutNd) and module.p > 0 and 'auxiliary' not in name
    ]


@contextmanager
def random_dropout(model: nn.Module, seed: int, device: torch.device) -> Iterator[None]:
    """Have dropout layers drop by a seed for a while; all others stay as they are.

    The state of the random number generators is put back.
    """
    layers = dropout_layers(model)
    before = [layer.training for layer in layers]
    with torch.random.fork_rng([device] if device.type == 'cuda' else []):
        torch.manual_seed(seed)
        try:
            for layer in layers:
                layer.training = True
            yield
        finally:
            for layer, training in zip(layers, before, strict=True):
                layer.training = training


def seed_of(content: object, *salt: int) -> int:
    """Return a seed that depends on an image's or a text's content and some numbers alone."""
    start = zlib.crc32(repr(salt).encode())
    if isinstance(content, Tensor):
        values = content.detach().cpu().contiguous()
        return zlib.crc32(values.view(torch.uint8).numpy().tobytes(), start)
    return zlib.crc32(repr(content).encode(), start)
