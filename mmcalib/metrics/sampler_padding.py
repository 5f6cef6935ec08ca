"""A sampler's padding among a rank's samples: none of it may count twice."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.dist import all_gather, get_dist_info


class SamplerPadding:
    """Lets the samples of a rank through one call late, and the last only if it is no padding.

    mmengine's samplers give rank r of W the samples r, r + W, r + 2W, … of the data set, and where
    W does not divide its size N, the last ranks get one that another has had. Only the call that
    ends an evaluation says N. So each sample waits here for the next one, and the last for that
    call: what has been let through counts for good, since nothing could take it out of a sum again.
    """

    def __init__(self) -> None:
        self.num_samples = 0
        self._waiting: list[tuple[int, Any]] = []

    def let_in(self, sample: Any) -> list[tuple[int, Any]]:
        """Take the next sample of this rank, and return the one before with its place, if any."""
        return self.let_in_batch(1, sample)[0]

    def let_in_batch(self, count: int, last: Any) -> tuple[list[tuple[int, Any]], list[int]]:
        """Take so many samples of this rank at once, the last of which waits.

        Returns:
            What :meth:`let_in` returns of the first, and the places of all but the last.
        """
        through, first = self._waiting, self.place
        self.num_samples += count
        *places, place = range(first, self.place, get_dist_info()[1])
        self._waiting = [(place, last)]
        return through, places

    @property
    def waiting(self) -> list[Any]:
        """The sample that has not been let through, if there is one."""
        return [sample for _, sample in self._waiting]

    @property
    def place(self) -> int:
        """The place in the data set of the next sample of this rank."""
        rank, world_size = get_dist_info()
        return self.num_samples * world_size + rank

    def close(self, size: int) -> list[tuple[int, Any]]:
        """Return the last sample with its place, unless it is beyond the `size` of the data set.

        To be called on all ranks.

        Raises:
            ValueError: If the ranks together have had more than a sampler's padding too many.
        """
        rank, world_size = get_dist_info()
        counts = torch.stack(all_gather(torch.tensor(self.num_samples))).tolist()
        surplus = sum(counts) - size
        if surplus >= world_size:
            raise ValueError(
                f'{sum(counts):,} samples were evaluated on {world_size} processes, and the data '
                f'set has {size:,}. A sampler repeats fewer than one sample per process; an '
                'interrupted evaluation leaves more: call reset() before the next one'
            )
        beyond = [n > 0 and (n - 1) * world_size + r >= size for r, n in enumerate(counts)]
        if surplus > 0 and sum(beyond) != surplus:
            raise ValueError(
                f'{sum(counts):,} samples were evaluated, {counts} on each process, of a data set '
                f'of {size:,}: they were not distributed in turn, so the repeated ones are unknown'
            )
        return [] if surplus > 0 and beyond[rank] else self._waiting
