"""Batches and single images of a pass over a loader, on which a model can run again."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from mmcalib.predictions.model_inputs import copy_inputs

# Two or three batches are kept at equal distances, the first one among them.
NUM_SPREAD = 3
# A model that chooses among experts may run other layers in every batch, so few sets are kept.
NUM_ROUTES = 4
# Ten thousand logits show whether a model predicts the same again.
NUM_VALUES = 10_000
# Single images are kept at equal distances over the whole pass: so many, of 256 MB at most.
NUM_SINGLE = 128
SINGLE_BYTES = 1 << 28
# The labels of a prediction may be in an object whose size is not known.
LABEL_BYTES = 8


@dataclass(frozen=True, eq=False)
class KeptBatch:
    """A batch of a pass, or one image of it.

    Attributes:
        batch: The batch as it was before the model ran on it.
        values: Some of the logits that the model predicted in the pass, on the CPU; None if
            unknown.
        images: The positions of its images in the pass.
        is_cut: Whether it is one image, cut from a batch. A model may predict it otherwise alone.
    """

    batch: Any
    values: Tensor | None = None
    images: range = range(0)
    is_cut: bool = False


class KeptBatches:
    """What stands for all batches of a pass, whatever its length: at most ten, and 128 images.

    The batches are the first, some in the middle and the last; those with the highest and the
    lowest logit, which a model may cut off; and the first for each set of layers that ran, since a
    model may choose its head by the input. The images are every first, second, fourth or eighth
    one and so on, as memory allows: they show what a model does to those of one site or camera,
    which may be in none of the batches.
    """

    def __init__(self) -> None:
        self._by_role: dict[Hashable, tuple[int, KeptBatch]] = {}
        self._stride = 1
        self._count = 0
        self._highest = float('-inf')
        self._lowest = float('inf')
        self._layers_that_ran: set[nn.Module] = set()
        self._single: dict[int, KeptBatch] = {}
        self._single_bytes: dict[int, int] = {}
        self._single_stride = 1
        self._num_images = 0

    def __iter__(self) -> Iterator[KeptBatch]:
        by_index = dict(self._by_role.values())
        batches = [by_index[index] for index in sorted(by_index)]
        yield from batches
        for image, kept in self._single.items():
            if not any(image in batch.images for batch in batches):
                yield kept

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note the layers that run in the meantime."""

        def note_layer(module: nn.Module, *_: Any) -> None:
            has_submodules = next(module.children(), None) is not None
            if not has_submodules:
                self._layers_that_ran.add(module)

        with register_module_forward_hook(note_layer):
            yield

    def add(self, batch: Any, logits: Sequence[Tensor]) -> None:
        """Keep a batch if it stands for others.

        Args:
            batch: The batch, which is copied, since a loader may fill it again.
            logits: Logits ``(K, *)`` of each image, a list or a tensor ``(N, K, *)``.
        """
        images = range(self._num_images, self._num_images + len(logits))
        self._num_images = images.stop
        self._add_single(batch, logits, images)
        kept = KeptBatch(batch, some_values(logits), images)
        roles: list[Hashable] = []
        if self._count % self._stride == 0:
            roles.append(('spread', self._count))
        parts = [logits] if torch.is_tensor(logits) else logits
        highest = max(values.max().item() for values in parts)
        if highest > self._highest:
            self._highest = highest
            roles.append('highest')
        lowest = min(values.min().item() for values in parts)
        if lowest < self._lowest:
            self._lowest = lowest
            roles.append('lowest')
        route = frozenset(map(id, self._layers_that_ran))
        self._layers_that_ran.clear()
        routes = [role for role in self._by_role if isinstance(role, frozenset)]
        if route not in routes and len(routes) < NUM_ROUTES:
            roles.append(route)
        # A loader fills no tensor again after its last batch, so this one needs no copy.
        self._by_role['last'] = (self._count, kept)
        if roles:
            copied = replace(kept, batch=copy_inputs(batch))
            for role in roles:
                self._by_role[role] = (self._count, copied)
        self._thin_out()
        self._count += 1

    def _add_single(self, batch: Any, logits: Sequence[Tensor] | Tensor, images: range) -> None:
        """Keep images of a batch whose positions in the pass are multiples of the stride."""
        for row, image in enumerate(images):
            if image % self._single_stride:
                continue
            try:
                part = cut_batch(batch, row, len(images))
            except NotCutError:
                return
            single = copy_inputs(part)
            values = some_values([logits[row]])
            self._single[image] = KeptBatch(single, values, range(image, image + 1), is_cut=True)
            num_labels = logits[row].numel() // len(logits[row])
            self._single_bytes[image] = count_bytes(single) + LABEL_BYTES * num_labels
            while len(self._single) > NUM_SINGLE or (
                len(self._single) > 1 and sum(self._single_bytes.values()) > SINGLE_BYTES
            ):
                self._single_stride *= 2
                for position in list(self._single):
                    if position % self._single_stride:
                        del self._single[position], self._single_bytes[position]

    def _thin_out(self) -> None:
        """Drop every second one of the spread batches, if they are many."""
        spread = [role[1] for role in self._by_role if isinstance(role, tuple)]
        if len(spread) > NUM_SPREAD:
            self._stride *= 2
            for index in spread:
                if index % self._stride:
                    del self._by_role['spread', index]


def some_values(logits: Sequence[Tensor] | Tensor) -> Tensor:
    """Return some of the logits, at equal distances, in float64 on the CPU.

    They are the same whether a batch is one tensor or a tensor for each image.
    """
    if torch.is_tensor(logits):
        logits = [logits]
    step = sum(values.numel() for values in logits) // NUM_VALUES + 1
    parts = []
    offset = 0
    for values in logits:
        parts.append(values.flatten()[-offset % step :: step].cpu().double())
        offset += values.numel()
    return torch.cat(parts)


class NotCutError(Exception):
    """A batch has an object of which nothing says what one image has."""


def cut_batch(batch: Any, row: int, num_images: int) -> Any:
    """Return the part of a batch that one of its images has.

    Arrays whose first axis, and lists whose length, is the number of images are cut. Numbers and
    texts stay, since nothing says whose they are.

    Raises:
        NotCutError: For an object with tensors, such as a batch of graphs.
    """
    if isinstance(batch, (Tensor, np.ndarray)):
        return batch[row : row + 1] if batch.ndim and len(batch) == num_images else batch
    if hasattr(batch, 'to') and not isinstance(batch, Mapping):
        raise NotCutError(type(batch).__name__)
    if isinstance(batch, Mapping):
        return {name: cut_batch(value, row, num_images) for name, value in batch.items()}
    if not isinstance(batch, (tuple, list)):
        return batch
    lengths = [len(value) for value in batch if isinstance(value, Tensor) and value.ndim]
    if len(batch) == num_images and num_images not in lengths:
        return batch[row : row + 1]
    parts = [cut_batch(value, row, num_images) for value in batch]
    if hasattr(batch, '_fields'):
        return type(batch)(*parts)
    return tuple(parts) if isinstance(batch, tuple) else parts


def count_bytes(batch: Any) -> int:
    """Return the size of the tensors of a batch in memory."""
    if isinstance(batch, (Tensor, np.ndarray)):
        return batch.nbytes
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (tuple, list)):
        return sum(count_bytes(value) for value in batch)
    return 0
