"""The two ways to ask whether two things are the same, and the record that a test leaves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from math import prod
from pathlib import Path

import mmengine

from mmcalib.work_dir_files import whole_file

# Of every record's model, see describe_model.
MODEL_KEYS = ('members', 'pipeline', 'views', 'mc_dropout', 'dropout_seed', 'calibration')
MODEL_KEYS += ('temperature',)


def digest(node: object) -> str:
    """Return 16 hexadecimal digits that are equal for equal JSON."""
    text = json.dumps(node, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def difference(there: Mapping, here: Mapping, words: Mapping[str, str]) -> list[str]:
    """Return the differences between two mappings, such as ``the epoch 3 (here: 4)``.

    Args:
        there: One of them.
        here: The other.
        words: The keys to compare, with their names.
    """
    return [
        f'{name} {there.get(key)} (here: {here.get(key)})'
        for key, name in words.items()
        if there.get(key) != here.get(key)
    ]


def read_record(path: str | Path, *needed: str) -> dict:
    """Return the record in a ``results.json`` or ``results_val.json``.

    Args:
        path: Of the file.
        needed: The keys that are needed besides ``metrics`` and ``model``.

    Raises:
        FileNotFoundError: If it is not there.
        ValueError: If it is no record of a test, or lacks a key, as one of another version may.
    """
    record = json.loads(Path(path).read_text(encoding='utf-8'))
    if not isinstance(record, dict) or not isinstance(record.get('metrics'), dict):
        raise ValueError('it holds no metrics of a test')
    lacking = [key for key in ('model', *needed) if key not in record]
    lacking += [f'model.{key}' for key in MODEL_KEYS if key not in (record.get('model') or ())]
    if lacking:
        raise ValueError(f'it lacks {", ".join(lacking)}, as of another version')
    return record


def write_record(record: Mapping, path: str | Path) -> None:
    """Write a record, whole or not at all."""
    with whole_file(path) as temporary:
        mmengine.dump(record, temporary, indent=2)


def paths_of(model: Mapping) -> list[str]:
    """Return the checkpoints of a record's model."""
    return [member['checkpoint'] for member in model['members']]


def view_count(model: Mapping) -> int:
    """Return the number of views of an image that a record's model predicts."""
    return prod(map(len, model['views']))


def is_ensemble(model: Mapping) -> bool:
    """Return whether a record's model is more than one network that predicts an image once."""
    more = model['views'] or model['mc_dropout'] or model['calibration']
    return len(model['members']) > 1 or bool(more)
