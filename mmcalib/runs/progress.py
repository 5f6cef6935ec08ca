"""Progress and remaining time: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


@contextmanager
def progress_of(doing: str, total: int) -> Iterator[Callable[[str], None]]:
    """Give a function to call with a line whenever one of several commands has ended.

    On a terminal the lines scroll above a bar with the time taken and the time left. Elsewhere, as
    in a log file, each line ends with the count and the time left.

    Args:
        doing: What the commands do, such as ``'Training'``.
        total: How many there are.
    """
    if sys.stdout.isatty():
        with _bar() as progress:
            task = progress.add_task(doing, total=total)

            def advance(line: str) -> None:
                progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
                progress.advance(task)

            yield advance
        return
    start, ended = time.monotonic(), 0

    def say(line: str) -> None:
        nonlocal ended
        ended += 1
        # Several run at once, so it is the pace of all of them that counts.
        left = (time.monotonic() - start) / ended * (total - ended)
        rest = f', about {duration_text(left)} left' if ended < total else ''
        print(f'{line} ({ended} of {total}{rest})', flush=True)

    yield say


def _bar() -> Progress:
    return Progress(
        TextColumn('{task.description}'),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn('left'),
        # The speed of long trainings is known only from those that ended long ago.
        TimeRemainingColumn(),
        console=Console(file=sys.stdout),
        speed_estimate_period=float('inf'),
    )


def duration_text(seconds: float) -> str:
    """Return a duration in its largest two units, such as ``2 h 5 min``."""
    if seconds < 60:
        return f'{round(seconds)} s'
    minutes = round(seconds / 60)
    return f'{minutes // 60} h {minutes % 60} min' if minutes >= 60 else f'{minutes} min'
