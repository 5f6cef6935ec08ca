"""Names as part of a line of text: of classes, files and runs, and of the commands."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

# A name may have characters that end a line or cannot be encoded.
UNPRINTABLE = re.compile(r'[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]')
# A sentence lists so many classes.
MOST_NAMES = 5


def printable(text: str) -> str:
    r"""Return a text in one line: a character that cannot be printed is escaped, as in \n."""
    return UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)


def command_text(name: str) -> str:
    """Return a command as its user can run it: ``mmcalib test``, or ``tools/test.py``.

    The file stands beside the one that runs, and is named by the folder that this one was named by.
    """
    script = Path(sys.argv[0])
    stem = {'robustness': 'test_robustness'}.get(name, name).replace('-', '_')
    file = script.absolute().with_name(f'{stem}.py')
    if script.suffix == '.py' and file.parent.name == 'tools' and file.is_file():
        return str(script.with_name(file.name))
    return f'mmcalib {name}'


def unlabelled_sentence(classes: Sequence[object]) -> str:
    """Return ``No label is of classes cat, dog: …``, with five names at most."""
    pronoun = 'it' if len(classes) == 1 else 'them'
    return f'No label is of {named_classes(classes)}: the data say nothing about {pronoun}.'


def named_classes(classes: Sequence[object]) -> str:
    """Return ``class cat`` or ``classes cat, dog``, with five names at most."""
    shown = ', '.join(map(str, classes[:MOST_NAMES]))
    if len(classes) > MOST_NAMES:
        shown += f' and {len(classes) - MOST_NAMES} more'
    return f'class {shown}' if len(classes) == 1 else f'classes {shown}'
