"""Several processes, with or without GPUs."""

from __future__ import annotations

import atexit
import os
import sys
from datetime import timedelta

import torch
from mmengine.dist import init_dist

from mmcalib.errors import UserError
from mmcalib.launchers import RANKS

PATIENCE = timedelta(days=7)


def join_processes(launcher: str) -> None:
    """Meet the other processes of a launcher, to exchange objects; each has a GPU, if there is one.

    Raises:
        UserError: If a launcher other than ``pytorch`` is asked for without a GPU, or ``pytorch``
            without torchrun.
    """
    if launcher == 'none' or torch.distributed.is_initialized():
        return
    if launcher == 'pytorch' and RANKS[launcher] not in os.environ:
        raise UserError(
            '--launcher pytorch is for processes that torchrun starts: call torchrun '
            '--nproc_per_node=2 -m mmcalib with the same arguments, or tools/dist_train.sh'
        )
    if torch.cuda.is_available():
        init_dist(launcher, backend='gloo', timeout=PATIENCE.total_seconds())
    elif launcher == 'pytorch':  # mmengine would call torch.cuda.
        torch.distributed.init_process_group('gloo', timeout=PATIENCE)
    else:
        raise UserError(
            f'--launcher {launcher} needs GPUs, and this machine has none: use --launcher pytorch '
            'with torchrun, or tools/dist_train.sh, which run on the CPU too'
        )


def leave_processes(status: int = 0) -> None:
    """Wait for the other processes and end, as the last thing that a command does.

    A gloo group is not destroyed, and nothing of C++ taken down: PyTorch 2.6 can wait there forever
    once another rank has left, and threads of gloo's that outlive their owner abort the process.

    Args:
        status: Exit status.
    """
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        if torch.distributed.get_backend() == 'gloo':
            atexit._run_exitfuncs()  # They flush the logs.
            sys.stdout.flush()
            os._exit(status)
        torch.distributed.destroy_process_group()
    if status:
        sys.exit(status)
