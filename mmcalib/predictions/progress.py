"""Progress bars."""

from __future__ import annotations

from collections.abc import Iterable
from operator import length_hint

from rich.console import Console
from rich.progress import track

from mmcalib.predictions.ranks import rank_and_world_size


def progress(items: Iterable, text: str) -> Iterable:
    """Yield batches of a loader or other items, and show a progress bar on stderr.

    The first of several processes shows it.

    Args:
        items: The items.
        text: The text of the bar.
    """
    rank, _ = rank_and_world_size()
    return track(
        items,
        text,
        total=length_hint(items) or None,
        console=Console(stderr=True),
        disable=rank > 0,
    )
