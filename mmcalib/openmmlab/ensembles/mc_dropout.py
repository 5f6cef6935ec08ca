"""Random dropout while a model predicts, with all other layers in evaluation mode."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from mmcalib.tensors import seeded


def dropout_layers(model: nn.Module) -> list[nn.Module]:
    """Return the dropout layers of a model with a probability above 0.

    Those of auxiliary heads, which predict nothing, are left out. Stochastic depth is no such
    layer, nor is dropout inside another layer, as in ``torch.nn.MultiheadAttention``.
    """
    return [
        module
        for name, module in model.named_modules()
        if isinstance(module, _DropoutNd) and module.p > 0 and 'auxiliary' not in name
    ]


@contextmanager
def random_dropout(model: nn.Module, seed: int, device: torch.device) -> Iterator[None]:
    """Make dropout layers random by a seed inside the context; other layers do not change.

    The states of the random number generators are put back.
    """
    layers = dropout_layers(model)
    were_training = [layer.training for layer in layers]
    with seeded(seed, device):
        try:
            for layer in layers:
                layer.training = True
            yield
        finally:
            for layer, training in zip(layers, were_training, strict=True):
                layer.training = training


def content_seed(content: object, *numbers: int) -> int:
    """Return a seed that depends only on some numbers and the content of an image or a text."""
    start = zlib.crc32(repr(numbers).encode())
    if isinstance(content, Tensor):
        values = content.detach().cpu().contiguous()
        return zlib.crc32(values.view(torch.uint8).numpy().tobytes(), start)
    return zlib.crc32(repr(content).encode(), start)
