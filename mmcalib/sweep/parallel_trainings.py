"""Commands run n at a time, sharing the machine, and ended with their parent."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

PATIENCE = 10.0  # seconds that a command has to end before it is killed


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
    lock: int | None = None,
    done: Callable[[Job, int], None],
) -> list[str]:
    """Run commands, `at_once` at a time; one that fails does not stop the others.

    Each gets an equal share of the CPU's threads, unless ``OMP_NUM_THREADS`` is set, and `gpus` of
    the GPUs in turn. An interruption of this process ends them all.

    Args:
        jobs: The commands.
        at_once: How many run at a time.
        gpus: GPUs of each, where there are any.
        lock: A file descriptor to keep open in all of them, of
            :func:`~mmcalib.work_dir_files.locked`.
        done: Called with every job that has ended and its status, from one thread at a time.

    Returns:
        The names of those that failed.
    """
    slots: queue.Queue[int] = queue.Queue()
    for slot in range(at_once):
        slots.put(slot)
    running: set[subprocess.Popen] = set()
    stopped, guard = threading.Event(), threading.Lock()

    def run(job: Job) -> int:
        slot = slots.get()
        try:
            with guard, job.log.open('ab') as log:
                if stopped.is_set():
                    return -1
                process = subprocess.Popen(
                    job.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment(slot, at_once, gpus),
                    start_new_session=True,  # its whole group can be ended
                    pass_fds=() if lock is None else (lock,),
                )
                running.add(process)
            status = process.wait()
            with guard:
                running.discard(process)
            return status
        finally:
            slots.put(slot)

    failed = []
    with ThreadPoolExecutor(at_once) as pool, interruptible():
        futures = {pool.submit(run, job): job for job in jobs}
        try:
            for future in as_completed(futures):
                status = future.result()
                if status != 0:
                    failed.append(futures[future].name)
                done(futures[future], status)
        except BaseException:
            with guard:
                stopped.set()
                left = list(running)
            for future in futures:
                future.cancel()
            end(left)
            raise
    return failed


def environment(slot: int, at_once: int, gpus: int) -> dict[str, str]:
    """Return the environment of a command in one of `at_once` places."""
    env = dict(os.environ)
    # The dist_*.sh call `python`.
    env['PATH'] = f'{Path(sys.executable).parent}{os.pathsep}{env.get("PATH", "")}'
    env['PORT'] = free_port()
    env.setdefault('OMP_NUM_THREADS', str(max(1, cpu_count() // (at_once * gpus))))
    devices = visible_gpus()
    if len(devices) > gpus:
        mine = [devices[(slot * gpus + index) % len(devices)] for index in range(gpus)]
        env['CUDA_VISIBLE_DEVICES'] = ','.join(mine)
    return env


def cpu_count() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """Return the GPUs that this process sees, as CUDA_VISIBLE_DEVICES would name them."""
    names = os.environ.get('CUDA_VISIBLE_DEVICES')
    if names is not None:
        return [name for name in names.split(',') if name]
    return [str(index) for index in range(torch.cuda.device_count())]


def free_port() -> str:
    """Return a TCP port that no process listens on."""
    with socket.socket() as listener:
        listener.bind(('localhost', 0))
        return str(listener.getsockname()[1])


def end(processes: Sequence[subprocess.Popen]) -> None:
    """End processes with all of their children, the patient way first."""
    for process in processes:
        _signal(process, signal.SIGTERM)
    for process in processes:
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            _signal(process, signal.SIGKILL)
            process.wait()


def _signal(process: subprocess.Popen, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextmanager
def interruptible() -> Iterator[None]:
    """Have SIGTERM and a closed terminal raise a KeyboardInterrupt, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number, frame):
        raise KeyboardInterrupt

    names = ('SIGTERM', 'SIGHUP')
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
