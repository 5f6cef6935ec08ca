"""Several processes, as their launcher tells each of them."""

import argparse
import os

RANKS = {'pytorch': 'RANK', 'slurm': 'SLURM_PROCID', 'mpi': 'OMPI_COMM_WORLD_RANK'}


def is_first_process(launcher: str | None = None) -> bool:
    """Return whether this process is the one that writes, before any has found the others.

    Tasks of a cluster that are started without a `launcher` are each a run of their own.

    Args:
        launcher: Of the run; by default the command line's.
    """
    if launcher is None:
        parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
        parser.add_argument('--launcher', nargs='?')
        launcher = parser.parse_known_args()[0].launcher
    return not int(os.environ.get(RANKS.get(launcher, ''), '') or 0)
