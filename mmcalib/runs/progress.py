"""The progress of several long commands, and the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import Progress


@contextmanager
def progress_of(doing: str, total: int) -> Iterator[Callable[[str], None]]:
    """Give a function to call with a line whenever one of several commands has ended.

    Each line ends with the count and the time left. On a terminal they scroll above rich's bar.

    Args:
        doing: A word for the commands, such as ``'Training'``.
        total: Their number.
    """
    console = Console()
    with Progress(console=console, disable=not console.is_terminal) as bar:
        bar.add_task(doing, total=total)
        (task,) = bar.tasks

        def say(line: str) -> None:
            bar.advance(task.id)
            # Several run at once, so it is the pace of all of them that counts.
            left = timedelta(seconds=round(task.elapsed / task.completed * task.remaining))
            rest = f', about {left} left' if task.remaining else ''
            line = f'{line} ({task.completed:.0f} of {total}{rest})'
            console.print(line, markup=False, highlight=False, soft_wrap=True)

        yield say
