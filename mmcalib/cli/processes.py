"""Several processes, as their launcher tells each of them."""

import os

RANKS = ('RANK', 'SLURM_PROCID', 'OMPI_COMM_WORLD_RANK')  # as the launchers set them


def is_first_process() -> bool:
    """Return whether this process is the one that writes, before any has found the others."""
    return not any(int(os.environ.get(name) or 0) for name in RANKS)
