"""Commands that run several at a time and share the machine."""

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
    """Run commands, `at_once` at a time; yield log and exit status of each that has ended.

    Each gets an equal share of the CPU's threads, unless ``OMP_NUM_THREADS`` is set, and `gpus` of
    the GPUs in turn. One that fails does not stop the others; an interruption ends all.

    Args:
        jobs: Commands by the files that their output is appended to.
        at_once: Number of commands that run at the same time.
        gpus: Number of GPUs for each, where there are any.
    """
    waiting_logs = list(jobs)
    running: dict[int, tuple[Path, subprocess.Popen]] = {}
    # Commands stay in this process's group, so that Ctrl-C and a closed terminal end all of them.
    # Only this thread starts commands, so that none starts behind an interruption.
    try:
        while waiting_logs or running:
            free_slots = [slot for slot in range(at_once) if slot not in running]
            for slot in free_slots[: len(waiting_logs)]:
                log = waiting_logs.pop(0)
                log.parent.mkdir(parents=True, exist_ok=True)
                with log.open('ab') as output:
                    process = subprocess.Popen(
                        jobs[log],
                        env=job_environment(slot, at_once, gpus),
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                    )
                running[slot] = log, process
            for slot, (log, process) in list(running.items()):
                status = process.poll()
                if status is not None:
                    del running[slot]
                    yield log, status
            time.sleep(0.1)
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.wait()


def job_environment(slot: int, at_once: int, gpus: int) -> dict[str, str]:
    """Return the environment of a command in one of `at_once` slots."""
    environment = dict(os.environ)
    # A command finds the modules that this process finds, such as those beside the config.
    environment['PYTHONPATH'] = os.pathsep.join(filter(None, sys.path))
    threads = max(1, cpu_count() // (at_once * gpus))
    environment.setdefault('OMP_NUM_THREADS', str(threads))
    visible_devices = environment.get('CUDA_VISIBLE_DEVICES')
    if visible_devices is None:
        devices = [str(index) for index in range(torch.cuda.device_count())]
    else:
        devices = visible_devices.split(',')
    if len(devices) > gpus:
        indices = [(slot * gpus + index) % len(devices) for index in range(gpus)]
        environment['CUDA_VISIBLE_DEVICES'] = ','.join(devices[index] for index in indices)
    return environment
