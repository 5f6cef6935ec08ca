"""What tells the mean of several predictions from another one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from mmcalib.runs.checkpoint_io import file_digest
from mmcalib.runs.model_settings import difference_of_settings
from mmcalib.runs.unlabelled_steps import without_labels


def mean_identity(checkpoints: Sequence[str], averaged: Mapping) -> dict:
    """Return what tells one mean from another: members, their settings, pipeline, views, dropouts.

    Args:
        checkpoints: Of the members, in any order.
        averaged: With the ``transforms`` in which views differ, the passes with ``mc_dropout``, the
            ``pipeline`` of the images, and the ``settings`` of each member, see
            :func:`~mmcalib.runs.model_settings.model_settings`.
    """
    members = [
        {'file': os.path.basename(path), 'digest': file_digest(path), 'settings': settings}
        for path, settings in zip(checkpoints, averaged['settings'], strict=True)
    ]
    return {
        'members': sorted(members, key=lambda member: member['digest']),
        'pipeline': without_labels(averaged['pipeline'][0]) if averaged['pipeline'] else [],
        'views': averaged['transforms'],
        'mc_dropout': averaged['mc_dropout'],
    }


def difference_of_means(there: Mapping, here: Mapping) -> str:
    """Return in what one mean differs from another, nothing if it does not.

    Settings and pipeline are compared where both have them; an older version wrote neither.

    Args:
        there: What :func:`mean_identity` said of it.
        here: The same of the other.
    """
    found = []
    digests = [[member['digest'] for member in mean['members']] for mean in (there, here)]
    if digests[0] != digests[1]:
        names = [', '.join(member['file'] for member in mean['members']) for mean in (there, here)]
        found.append(f'the checkpoints {names[0]} (here: {names[1]})')
    else:
        for one, other in zip(there['members'], here['members'], strict=True):
            wrong = difference_of_settings(one.get('settings'), other.get('settings'))
            found += [f'{other["file"]} with {wrong}'] if wrong else []
    before, now = there.get('pipeline'), here.get('pipeline')
    if before and now and before != now:
        found.append(f'the test pipeline {before} (here: {now})')
    found += [
        f'{what} {there[key]} (here: {here[key]})'
        for key, what in (('views', 'the views'), ('mc_dropout', 'passes with dropout:'))
        if there[key] != here[key]
    ]
    return '; '.join(found)
