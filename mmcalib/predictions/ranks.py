"""Processes of a run: the images that each one reads, and the exchange of their results."""

from __future__ import annotations

from typing import Any

import torch


def rank_and_world_size() -> tuple[int, int]:
    """Return the rank of this process and the number of processes."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


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
