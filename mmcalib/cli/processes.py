"""Which of the processes of a launcher this one is, before torch is imported."""

from __future__ import annotations

import os
from collections.abc import Sequence

RANKS = {'pytorch': 'RANK', 'slurm': 'SLURM_PROCID', 'mpi': 'OMPI_COMM_WORLD_RANK'}


def is_first_process(launcher: str) -> bool:
    """Return whether this process writes; tasks of a cluster without a launcher are runs each."""
    return os.environ.get(RANKS.get(launcher, ''), '0') == '0'


def launcher_in(arguments: Sequence[str]) -> str:
    """Return the ``--launcher`` of a command line, also of one that a parser refuses."""
    for number, argument in enumerate(arguments):
        if argument.startswith('--launcher='):
            return argument.partition('=')[2]
        if argument == '--launcher' and number + 1 < len(arguments):
            return arguments[number + 1]
    return 'none'
