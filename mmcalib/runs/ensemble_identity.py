"""What tells the mean of several predictions from another one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmcalib.ensembles.ensemble_model import read_temperature
from mmcalib.runs.checkpoint_io import file_digest
from mmcalib.runs.model_settings import difference_of_settings
from mmcalib.runs.unlabelled_pipeline import without_labels


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


def find_temperature(path: str, mean: Mapping) -> dict:
    """Return how a mean was calibrated, by the file that says so.

    Args:
        path: The file.
        mean: Its :func:`~mmcalib.runs.ensemble_identity.mean_identity`.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it holds no temperature, or one of another mean, or lacks a part.
    """
    read_temperature(path)
    content = json.loads(Path(path).read_text(encoding='utf-8'))
    fitted = content.get('mean_of')
    if not isinstance(fitted, Mapping):
        raise ValueError(f'{path} does not say of which predictions its temperature is')
    try:
        wrong = difference_of_means(fitted, mean)
        described = {
            'methods': [content['method']],
            'options': content['options'],
            'split': content['split'],
            'forced': content['forced'],
        }
    except KeyError as error:
        raise ValueError(
            f'{path} lacks {error}, which tools/calibrate.py wrote: fit the temperature again'
        ) from error
    if wrong:
        raise ValueError(
            f'{path} was fitted on another mean, of {wrong}: fit one by tools/calibrate.py with '
            'the arguments of this call'
        )
    return described
