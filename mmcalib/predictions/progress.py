"""Progress bars."""

from __future__ import annotations

from collections.abc import Iterable
from operator import length_hint

from rich.console import Console
from rich.progress import track

from mmcalib.predictions.distributed import rank_and_world_size


def progress(items: Iterable, text: str, *, transient: bool = False) -> Iterable:
    """Yield batches of a loader or other items, and show a progress bar on stderr.

    The first of several processes shows it.

    Args:
        items: The items.
        text: The text of the bar.
        transient: Whether the bar is for a terminal alone, and vanishes in the end.
    """
    rank, _ = rank_and_world_size()
    console = Console(stderr=True)
    return track(
        items,
        text,
        total=length_hint(items) or None,
        console=console,
        transient=transient,
        disable=rank > 0 or (transient and not console.is_terminal),
    )
