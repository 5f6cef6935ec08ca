"""The rank of this process among those of a launcher, known before torch is imported."""

from __future__ import annotations

import os
from collections.abc import Sequence

# Environment variables with the rank, by launcher.
RANKS = {'pytorch': 'RANK', 'slurm': 'SLURM_PROCID', 'mpi': 'OMPI_COMM_WORLD_RANK'}


def is_first_process(launcher: str) -> bool:
    """Return whether this process writes; tasks of a cluster without a launcher are runs each."""
    return os.environ.get(RANKS.get(launcher, ''), '0') == '0'


def find_launcher(arguments: Sequence[str]) -> str:
    """Return the ``--launcher`` of a command line, also of one that a parser refuses."""
    for index, argument in enumerate(arguments):
        if argument.startswith('--launcher='):
            return argument.removeprefix('--launcher=')
        if argument == '--launcher' and index + 1 < len(arguments):
            return arguments[index + 1]
    return 'none'
