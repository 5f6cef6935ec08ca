"""Commands run n at a time, sharing the machine."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from joblib import cpu_count
from torch.distributed.elastic.utils.distributed import get_free_port


@dataclass
class Job:
    """A command and the file that its output is appended to."""

    name: str
    command: list[str]
    log: Path


def run_jobs(
    jobs: Sequence[Job],
    at_once: int,
    *,
    gpus: int = 1,
    done: Callable[[Job, int], None],
) -> None:
    """Run commands, `at_once` at a time; one that fails does not stop the others.

    Each gets an equal share of the CPU's threads, unless ``OMP_NUM_THREADS`` is set, and `gpus` of
    the GPUs in turn.

    Args:
        jobs: The commands.
        at_once: Number of commands that run at the same time.
        gpus: GPUs for each, where there are any.
        done: Called in this thread with each job that has ended, and its status.
    """
    slots: queue.SimpleQueue[int] = queue.SimpleQueue()
    for slot in range(at_once):
        slots.put(slot)

    def run(job: Job) -> int:
        slot = slots.get()
        try:
            with job.log.open('ab') as log:
                return subprocess.call(
                    job.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment(slot, at_once, gpus),
                )
        finally:
            slots.put(slot)

    # Commands stay in this process's group, so that Ctrl-C and a closed terminal end all of them.
    # They are submitted one by one, since the pool would start those that wait even then.
    waiting, running = iter(jobs), {}
    with ThreadPoolExecutor(at_once) as pool:
        running = {pool.submit(run, job): job for job in islice(waiting, at_once)}
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                done(running.pop(future), future.result())
                running |= {pool.submit(run, job): job for job in islice(waiting, 1)}


def environment(slot: int, at_once: int, gpus: int) -> dict[str, str]:
    """Return the environment of a command in one of `at_once` places."""
    env = dict(os.environ)
    # The dist_*.sh call `python`.
    env['PATH'] = f'{Path(sys.executable).parent}{os.pathsep}{env.get("PATH", "")}'
    env['PYTHONPATH'] = os.pathsep.join(filter(None, sys.path))  # with the folder of the config
    env['PORT'] = str(get_free_port())
    env.setdefault('OMP_NUM_THREADS', str(max(1, cpu_count() // (at_once * gpus))))
    names = env.get('CUDA_VISIBLE_DEVICES')
    devices = range(torch.cuda.device_count()) if names is None else names.split(',')
    if len(devices) > gpus:
        mine = [devices[(slot * gpus + index) % len(devices)] for index in range(gpus)]
        env['CUDA_VISIBLE_DEVICES'] = ','.join(map(str, mine))
    return env
