"""The error for a user's mistake, warnings, and the names that the user may have meant."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

# Names of scalings in other libraries.
OTHER_NAMES = {'sigmoid': 'platt', 'logistic': 'platt'}
LEAST_ABBREVIATION = 3


class UserError(ValueError):
    """Mistake in a config, a checkpoint, a file or the data that the user can mend.

    The message has problem, value and remedy.
    """

    @property
    def reason(self) -> str:
        """Message without the traceback that a worker process puts around it."""
        return str(self).rpartition(f'{type(self).__name__}: ')[2].strip()


@contextmanager
def as_user_errors() -> Iterator[None]:
    """Raise what the library says of a user's values as a UserError, which ends a command."""
    try:
        yield
    except UserError:
        raise
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from error


def warn(message: str) -> None:
    """Warn at the line of the user's code that called mmcalib, however deep the problem is."""
    frame = sys._getframe(1)
    level = 2
    while frame is not None and frame.f_globals.get('__name__', '').split('.')[0] == 'mmcalib':
        frame = frame.f_back
        level += 1
    warnings.warn(message, stacklevel=level)


def nearest(name: object, known: Iterable[object], *, likeness: float = 0.7) -> str | None:
    """Return the known name that is most like another one, None if none is like it.

    An abbreviation of three letters or more, as `acc`, is like the one name that begins with it.

    Args:
        name: A name that does not exist; an object that is no text is like none.
        known: Names that exist.
        likeness: The least likeness of the returned name, from 0 to 1.
    """
    if not isinstance(name, str):
        return None
    known = list(known)
    if OTHER_NAMES.get(name.lower()) in known:
        return OTHER_NAMES[name.lower()]
    known_by_lower = {}
    for known_name in known:
        if isinstance(known_name, str):
            known_by_lower[known_name.lower()] = known_name
    beginnings = [
        known_name for known_name in known_by_lower if known_name.startswith(name.lower())
    ]
    if len(beginnings) == 1 and len(name) >= LEAST_ABBREVIATION:
        return known_by_lower[beginnings[0]]
    matches = get_close_matches(name.lower(), known_by_lower, 1, cutoff=likeness)
    return known_by_lower[matches[0]] if matches else None


def suggestion(name: object, known: Iterable[object]) -> str:
    """Return ``; did you mean X?``, the end of an error, or an empty text if no name is near."""
    meant = nearest(name, known, likeness=0.6)  # ECE with two letters swapped is still near.
    return f'; did you mean {meant}?' if meant else ''


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return :func:`suggestion`, or all known names if none is near."""
    known = list(known)
    return suggestion(name, known) or f'; there are {", ".join(sorted(known)) or "none"}'
