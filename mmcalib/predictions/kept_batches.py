"""A few batches of a pass over a loader, on which a model can run again."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True, eq=False)
class KeptBatch:
    """A batch of a pass.

    Attributes:
        batch: The batch as it was before the model ran on it.
        values: Some of the logits that the model predicted in the pass, on the CPU; None if
            unknown.
    """

    batch: Any
    values: Tensor | None = None


class KeptBatches:
    """The batches of a pass that stand for all: at most ten, whatever the length of the pass.

    They are the first, some in the middle and the last; those with the highest and the lowest
    logit, which a model may cut off; and the first for each set of layers that ran, since a model
    may choose its head by the input. A proof on the first batch alone would miss these.
    """

    def __init__(self) -> None:
        self._by_role: dict[Hashable, tuple[int, KeptBatch]] = {}
        self._stride = 1
        self._count = 0
        self._highest = float('-inf')
        self._lowest = float('inf')
        self._layers_that_ran: set[nn.Module] = set()

    def __iter__(self) -> Iterator[KeptBatch]:
        by_index = dict(self._by_role.values())
        return iter([by_index[index] for index in sorted(by_index)])

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
            batch: The batch, which is copied, since a loader may fill them again.
            logits: Logits ``(K, *)`` of each image, or one tensor of all.
        """
        kept = KeptBatch(batch, some_values(logits))
        roles: list[Hashable] = []
        if self._count % self._stride == 0:
            roles.append(('spread', self._count))
        highest = max(values.max().item() for values in logits)
        if highest > self._highest:
            self._highest = highest
            roles.append('highest')
        lowest = min(values.min().item() for values in logits)
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
            copied = KeptBatch(copy_inputs(batch), kept.values)
            for role in roles:
                self._by_role[role] = (self._count, copied)
        self._thin_out()
        self._count += 1

    def _thin_out(self) -> None:
        """Drop every second one of the spread batches, if they are many."""
        spread = [role[1] for role in self._by_role if isinstance(role, tuple)]
        if len(spread) > NUM_SPREAD:
            self._stride *= 2
            for index in spread:
                if index % self._stride:
                    del self._by_role['spread', index]


def some_values(logits: Sequence[Tensor]) -> Tensor:
    """Return some of the logits, at equal distances, in float64 on the CPU.

    They are the same whether a batch is one tensor or a tensor for each image.
    """
    step = sum(values.numel() for values in logits) // NUM_VALUES + 1
    parts = []
    offset = 0
    for values in logits:
        parts.append(values.flatten()[-offset % step :: step].cpu().double())
        offset += values.numel()
    return torch.cat(parts)
