"""What can be known of several processes by those who do not see the Runner."""

from __future__ import annotations

import logging
import os
import re
from functools import cache

from mmengine.dist import get_world_size
from mmengine.logging import MessageHub, print_log

RANKS = ('RANK', 'SLURM_PROCID', 'OMPI_COMM_WORLD_RANK')  # as the launchers set them
SHARED = re.compile(r'\b(SyncBN|SyncBuffersHook|SameBuffersHook)\b')


def is_first_process() -> bool:
    """Return whether this process is the one that writes, before any has found the others."""
    return not any(int(os.environ.get(name) or 0) for name in RANKS)


def warn_if_models_differ() -> None:
    """Say once if this is a validation in a training whose processes may each have another model.

    mmengine leaves the statistics of batch normalisation to each process and saves the first's.
    """
    hub = MessageHub.get_current_instance()
    # Only a training sets max_iters.
    if get_world_size() > 1 and hub.get_info('max_iters') is not None:
        _warn_if_models_differ(str(hub.get_info('cfg')))


@cache
def _warn_if_models_differ(config: str) -> None:
    if not SHARED.search(config):
        print_log(
            'Validating on several processes: if the model has batch normalisation without SyncBN, '
            'each process validates its own statistics, and the checkpoint will hold those of the '
            "first. Add custom_hooks=[dict(type='SameBuffersHook')], as mmcalib's own tools do",
            'current',
            logging.WARNING,
        )
