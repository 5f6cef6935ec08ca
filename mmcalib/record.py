"""The two ways to ask whether two things are the same, the record of a test, and its label."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

import mmengine

from mmcalib.work_dir import whole_file

# Of every record's model, see describe_model.
MODEL_KEYS = ('members', 'pipeline', 'views', 'mc_dropout', 'dropout_seed', 'calibration')
MODEL_KEYS += ('temperature',)
# In the paper's order.
SHORT_NAMES = {
    'CrossEntropyLoss': 'CE',
    'ConfidencePenaltyLoss': 'ECP',
    'LabelSmoothingLoss': 'LS',
    'SoftmaxFocalLoss': 'FL',
    'SampleDependentFocalLoss': 'FLSD',
    'MarginLabelSmoothingLoss': 'MbLS',
    'BrierLoss': 'Brier',
    'DualFocalLoss': 'DFL',
    'InverseFocalLoss': 'IFL',
    'BSCELoss': 'BSCE',
    'MDCALoss': 'MDCA',
    'SVLSLoss': 'SVLS',
    'NACLLoss': 'NACL',
    'L1ACELoss': 'mL1-ACE',
    'ACLSLoss': 'ACLS',
    'CALSLoss': 'CALS',
    'AdaFocalLoss': 'AdaFocal',
}
SYMBOLS = {'margin': 'm', 'alpha': 'α', 'gamma': 'γ'}
# mmseg's default counts ignored pixels as well, which neither our losses nor the paper's code do.
COUNTS_VALID_PIXELS = ('avg_non_ignore', True)


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


def differences(there: object, here: object, path: str = '') -> Iterator[str]:
    """Yield the differences of two JSON values, such as ``members.0.seed 3 (here: 4)``."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in dict.fromkeys([*there, *here]):
            yield from differences(there.get(key), here.get(key), f'{path}.{key}'.lstrip('.'))
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for number, both in enumerate(zip(there, here, strict=True)):
            yield from differences(*both, f'{path}.{number}')
    elif there != here:
        yield f'{path} {there} (here: {here})'


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


def read_json(path: str | Path, remedy: str = 'run its tool again') -> dict:
    """Return a file's content, with a remedy in the ValueError if it is cut off."""
    try:
        return json.loads(Path(path).read_text(encoding='utf-8'))
    except ValueError as error:
        raise ValueError(f'{path} cannot be read ({error!r}): {remedy}') from error


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


def loss_label(loss: Mapping) -> str:
    """Return ``MbLS m=6 α=0.1`` and the like; of a sum of losses ``FL γ=3 + MDCA``."""
    if loss['type'] == 'CombinedLoss':
        return ' + '.join(loss_label(term) for term in loss['losses'])
    parts = [SHORT_NAMES.get(loss['type'], loss['type'])]
    others = sorted(key for key in loss if key not in SYMBOLS)
    for key in [*(key for key in SYMBOLS if key in loss), *others]:
        value = loss[key]
        if key != 'type' and (key, value) != COUNTS_VALID_PIXELS:
            text = f'{value:g}' if isinstance(value, float) else value
            parts.append(f'{SYMBOLS.get(key, key)}={text}')
    return ' '.join(parts)


def model_label(
    loss: Mapping | None,
    calibration: Mapping | None,
    model: Mapping | None,
    *,
    experiment: str,
    losses: Sequence[Mapping] = (),
) -> str:
    """Return ``CE``, ``MbLS m=6 α=0.1 + temperature``, ``CE × 5 + TTA (2) + temperature`` etc.

    Args:
        loss: Type and parameters; None to say the experiment instead.
        calibration: Of the checkpoint, or of each member of an ensemble.
        model: Of the record; None to leave it out.
        experiment: Name of the config.
        losses: Those of members that differ.
    """
    label = loss_label(loss) if loss else experiment
    if losses:
        label = ' & '.join(map(loss_label, losses))
    return label + _calibrated(calibration) + ensemble_label(model)


def ensemble_label(model: Mapping | None) -> str:
    """Return `` × 5 + TTA (2) + MC dropout (20) + temperature`` and the like, with a space first.

    In brackets are the views of an image, and the passes with random dropout.
    """
    if not model:
        return ''
    members = [member['calibration'] for member in model['members']]
    label = f' × {len(members)}' if len(members) > 1 else ''
    if any(each != members[0] for each in members):
        texts = Counter(filter(None, map(_calibrated, members)))
        label += f' ({", ".join(f"{count} of them{text}" for text, count in texts.items())})'
    if model['views']:
        label += f' + TTA ({view_count(model)})'
    if model['mc_dropout']:
        label += f' + MC dropout ({model["mc_dropout"]})'
    return label + _calibrated(model['calibration'])


def _calibrated(calibration: Mapping | None) -> str:
    if not calibration:
        return ''
    forced = ''.join(f', {reason}' for reason in calibration['forced'])
    return f' + {" + ".join(map(str, calibration["methods"]))}{forced}'
