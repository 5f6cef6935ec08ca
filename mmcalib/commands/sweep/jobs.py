"""Commands run n at a time, sharing the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from joblib import cpu_count


def run_jobs(
    jobs: Mapping[Path, list[str]], at_once: int, *, gpus: int = 1
) -> Iterator[tuple[Path, int]]:
    """Run commands, `at_once` at a time, and yield the log and the status of each that has ended.

    Each gets an equal share of the CPU's threads, unless ``OMP_NUM_THREADS`` is set, and `gpus` of
    the GPUs in turn. One that fails does not stop the others; an interruption ends all.

    Args:
        jobs: Commands by the files that their output is appended to.
        at_once: Number of commands that run at the same time.
        gpus: GPUs for each, where there are any.
    """
    waiting: list[Path] = list(jobs)
    running: dict[int, tuple[Path, subprocess.Popen]] = {}
    # Commands stay in this process's group, so that Ctrl-C and a closed terminal end all of them.
    # Only this thread starts commands, so that none starts behind an interruption.
    try:
        while waiting or running:
            for slot in sorted(set(range(at_once)) - running.keys())[: len(waiting)]:
                log = waiting.pop(0)
                log.parent.mkdir(parents=True, exist_ok=True)
                with log.open('ab') as out:
                    streams = dict(stdin=subprocess.DEVNULL, stdout=out, stderr=out)
                    env = environment(slot, at_once, gpus)
                    running[slot] = log, subprocess.Popen(jobs[log], env=env, **streams)
            for slot, (log, process) in list(running.items()):
                if (status := process.poll()) is not None:
                    del running[slot]
                    yield log, status
            time.sleep(0.1)
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.wait()


def environment(slot: int, at_once: int, gpus: int) -> dict[str, str]:
    """Return the environment of a command in one of `at_once` places."""
    env = dict(os.environ)
    env['PYTHONPATH'] = os.pathsep.join(filter(None, sys.path))  # with the folder of the config
    env.setdefault('OMP_NUM_THREADS', str(max(1, cpu_count() // (at_once * gpus))))
    names = env.get('CUDA_VISIBLE_DEVICES')
    devices = range(torch.cuda.device_count()) if names is None else names.split(',')
    if len(devices) > gpus:
        mine = [devices[(slot * gpus + index) % len(devices)] for index in range(gpus)]
        env['CUDA_VISIBLE_DEVICES'] = ','.join(map(str, mine))
    return env
