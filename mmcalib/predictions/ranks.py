"""What the processes of a run share: which images they read, and their results."""

from __future__ import annotations

from typing import Any

import torch


def rank_and_world_size() -> tuple[int, int]:
    """Return the rank of this process and the number of processes."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def place_of(number: int) -> int:
    """Return the place in the data set of the number-th image that this process reads.

    Samplers hand the images out in turn. A place beyond the data set is that of an image which
    fills up a process' share, and is not to be counted.
    """
    rank, world_size = rank_and_world_size()
    return number * world_size + rank


def gather_objects(value: Any) -> list:
    """Return the values of all processes, in the order of their ranks; all have to call it."""
    _, world_size = rank_and_world_size()
    if world_size == 1:
        return [value]
    values: list = [None] * world_size
    torch.distributed.all_gather_object(values, value)
    return values


def keep_own(value: Any) -> list:
    """Return the value of this process alone, for what each process measures by itself."""
    return [value]
