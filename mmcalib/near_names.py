"""The nearest known name to one that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like another one, None if none is like it."""
    by_lower = {each.lower(): each for each in sorted(known)}
    found = get_close_matches(name.lower(), by_lower, 1, cutoff=0.7)
    return by_lower[found[0]] if found else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean X?``, the end of an error, or nothing where no name is near."""
    found = nearest(name, known)
    return f'; did you mean {found}?' if found else ''


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return :func:`suggestion`, or all known names where none is near."""
    return suggestion(name, known) or f'; there are {", ".join(sorted(known))}'
