"""Commands run n at a time, sharing the machine."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
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
    slots: queue.SimpleQueue[int] = queue.SimpleQueue()
    for slot in range(at_once):
        slots.put(slot)
    running: set[subprocess.Popen] = set()

    def run(log: Path) -> int:
        slot = slots.get()
        try:
            with log.open('ab') as out:
                streams = dict(stdin=subprocess.DEVNULL, stdout=out, stderr=out)
                env = environment(slot, at_once, gpus)
                running.add(process := subprocess.Popen(jobs[log], env=env, **streams))
                return process.wait()
        finally:
            slots.put(slot)

    # Commands stay in this process's group, so that Ctrl-C and a closed terminal end all of them.
    with ThreadPoolExecutor(at_once) as pool:
        futures = {pool.submit(run, log): log for log in jobs}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:  # one of them may have started in this moment
                process.terminate()
            raise


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
