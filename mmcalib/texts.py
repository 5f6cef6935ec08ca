"""Names that users choose, of classes, files and runs, as texts in a line of their own."""

from __future__ import annotations

import re

# What ends a line or is no text, and yet may be in a name.
UNPRINTABLE = re.compile(r'[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]')


def printable(text: str) -> str:
    r"""Return a text in one line: what cannot be printed, such as a new line, is escaped as \n."""
    return UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)
