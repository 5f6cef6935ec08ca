"""The nearest known name to one that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from mmcalib.registration import GONE


def nearest(name: object, known: Iterable[object], *, likeness: float = 0.7) -> str | None:
    """Return the known name that is most like another one, None if none is like it.

    Args:
        name: The one that does not exist; what is not a text is like none.
        known: Those that do.
        likeness: The least that counts, from 0 to 1.
    """
    if not isinstance(name, str):
        return None
    by_lower = {each.lower(): each for each in known if isinstance(each, str)}
    found = get_close_matches(name.lower(), by_lower, 1, cutoff=likeness)
    return by_lower[found[0]] if found else None


def suggestion(name: object, known: Iterable[object]) -> str:
    """Return ``; did you mean X?``, the end of an error, or nothing where no name is near.

    Of a name that an earlier version had, what to use in its place.
    """
    if name in GONE:
        return f'; {name} is gone since 0.3.0: {GONE[name]}'
    found = nearest(name, known, likeness=0.6)  # two letters of ECE swapped
    return f'; did you mean {found}?' if found else ''


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return :func:`suggestion`, or all known names where none is near."""
    known = list(known)
    return suggestion(name, known) or f'; there are {", ".join(sorted(known))}'
