"""What tells the mean of several predictions from another one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from mmcalib.runs.checkpoint_io import file_digest


def mean_identity(checkpoints: Sequence[str], averaged: Mapping) -> dict:
    """Return what tells one mean from another: its members, views and dropouts.

    Args:
        checkpoints: Of the members, in any order.
        averaged: With the ``transforms`` in which views differ, and the passes with ``mc_dropout``.
    """
    members = [{'file': os.path.basename(p), 'digest': file_digest(p)} for p in checkpoints]
    return {
        'members': sorted(members, key=lambda member: member['digest']),
        'views': averaged['transforms'],
        'mc_dropout': averaged['mc_dropout'],
    }


def difference_of_means(there: Mapping, here: Mapping) -> str:
    """Return in what one mean differs from another, nothing if it does not.

    Args:
        there: What :func:`mean_identity` said of it.
        here: The same of the other.
    """
    found = []
    digests = [[member['digest'] for member in mean['members']] for mean in (there, here)]
    if digests[0] != digests[1]:
        names = [', '.join(member['file'] for member in mean['members']) for mean in (there, here)]
        found.append(f'the checkpoints {names[0]} (here: {names[1]})')
    found += [
        f'{what} {there[key]} (here: {here[key]})'
        for key, what in (('views', 'the views'), ('mc_dropout', 'passes with dropout:'))
        if there[key] != here[key]
    ]
    return '; '.join(found)
