"""Processes of a run: the images that each one reads, and the exchange of their results."""

from __future__ import annotations

from typing import Any

import torch

from mmcalib.errors import UserError

# Attributes of samplers of torch and timm, Accelerate, and mmengine.
PART_COUNTS = ('num_replicas', 'num_processes', 'world_size')


# The attribute of a progress bar of tqdm and of prefetchers that holds the loader.
WRAPPED_LOADERS = ('iterable', 'loader')


def unwrapped_loader(loader: Any) -> Any:
    """Return the loader in a progress bar or another object that gives its batches."""
    for name in WRAPPED_LOADERS:
        wrapped = getattr(loader, name, None)
        if hasattr(wrapped, '__iter__'):
            return unwrapped_loader(wrapped)
    return loader


def rank_and_world_size() -> tuple[int, int]:
    """Return the rank of this process and the number of processes."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def check_reads_all(loader: Any) -> None:
    """Raise a UserError for a loader that gives each process a part of the images.

    It prevents wrong numbers: each process would have a figure and a scaling of its own, so that
    replicas of a model would differ.
    """
    loader = unwrapped_loader(loader)
    batch_sampler = getattr(loader, 'batch_sampler', None)
    owners = [batch_sampler, getattr(batch_sampler, 'sampler', None)]
    # The state is that of Accelerate's loaders of streams.
    owners += [getattr(loader, name, None) for name in ('sampler', 'dataset', 'state')]
    for owner in owners:
        num_parts = max(_integer(owner, name) for name in PART_COUNTS)
        if num_parts > 1:
            raise UserError(
                f'the loader gives this process one of {num_parts} parts of the images '
                f'({type(owner).__name__}), and each process would have numbers of its own: give '
                'a loader of all images, as DataLoader(dataset, batch_size=64), which gives the '
                'same to all processes; StreamingMetrics measures parts'
            )


def _integer(owner: object, name: str) -> int:
    value = getattr(owner, name, None)
    return value if isinstance(value, int) else 0


def dataset_index(position: int) -> int:
    """Return the index in the dataset of an image that this process reads.

    Samplers hand the images out in turn. An index beyond the dataset is that of a repeated image,
    which fills up a process' share and must not be counted.

    Args:
        position: The position of the image among those of this process, from 0 on.
    """
    rank, world_size = rank_and_world_size()
    return position * world_size + rank


def gather_objects(value: Any) -> list:
    """Return the values of all processes, in the order of their ranks; all have to call it."""
    _, world_size = rank_and_world_size()
    if world_size == 1:
        return [value]
    values: list = [None] * world_size
    torch.distributed.all_gather_object(values, value)
    return values


def gather_one_process(value: Any) -> list:
    """Return the value of this process alone, for what each process measures by itself."""
    return [value]
