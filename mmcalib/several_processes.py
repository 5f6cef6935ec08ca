"""What a metric can know of a training on several processes, which it does not see."""

from __future__ import annotations

import logging
import re
from functools import cache

from mmengine.dist import get_world_size
from mmengine.logging import MessageHub, print_log

SHARED = re.compile(r'\b(SyncBN|SyncBuffersHook|SameBuffersHook)\b')


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
