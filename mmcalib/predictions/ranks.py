"""Which images of the data the processes of a run read."""

from __future__ import annotations

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
