"""Several processes, for code that does not see the Runner."""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
from datetime import timedelta
from functools import cache

import torch
from mmengine.dist import get_dist_info, get_world_size, init_dist
from mmengine.logging import MessageHub, print_log

PATIENCE = timedelta(days=7)
SHARED = re.compile(r'\b(SyncBN|SyncBuffersHook|SameBuffersHook)\b')


def join_processes(launcher: str) -> None:
    """Meet the other processes of a launcher, without a Runner; each has a GPU of its own.

    They exchange objects alone, and wait for each other for as long as a week.

    Raises:
        ValueError: If a launcher other than ``pytorch`` is asked for without a GPU.
    """
    if launcher == 'none' or torch.distributed.is_initialized():
        return
    if torch.cuda.is_available():
        init_dist(launcher, backend='gloo', timeout=PATIENCE.total_seconds())
    else:
        join_without_gpus(launcher, timeout=PATIENCE)


def join_without_gpus(launcher: str, **options) -> None:
    """Do the same on a machine without GPUs, for which mmengine would call torch.cuda.

    Args:
        launcher: Of the processes.
        options: Of ``torch.distributed.init_process_group``.

    Raises:
        ValueError: If it is another than ``pytorch``.
    """
    if launcher != 'pytorch':
        raise ValueError(
            f'--launcher {launcher} needs GPUs, and this machine has none: use '
            'tools/dist_train.sh or tools/dist_test.sh, or --launcher pytorch with '
            'tools/torchrun.py, which run on the CPU too'
        )
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group('gloo', **options)


def leave_processes() -> None:
    """Wait for the other processes and end, as the last thing that a tool does.

    One that just exits may take others along. And of 35 tests on two busy CPU processes one was
    aborted after it had left the group, by a thread of gloo's that outlived its owner: so nothing
    of C++ is taken down there.
    """
    if not torch.distributed.is_initialized():
        return
    torch.distributed.barrier()
    backend = torch.distributed.get_backend()
    torch.distributed.destroy_process_group()
    if backend == 'gloo':
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def place_of(number: int) -> int:
    """Return the place in the data set of the number-th image that this process reads.

    As mmengine's samplers hand them out in turn. A place beyond the data set is that of an image
    which fills up a process' share, and is not to be counted.
    """
    rank, world_size = get_dist_info()
    return number * world_size + rank


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
