"""A test's record: what was tested, on what, and what came out. One file writes and reads it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from math import prod
from numbers import Real
from pathlib import Path
from textwrap import shorten

from mmcalib.errors import UserError
from mmcalib.files import whole_file
from mmcalib.names import SHORT_NAMES, SYMBOLS

# mmseg's default counts ignored pixels as well, which neither our losses nor the paper's code do.
COUNTS_VALID_PIXELS = ('avg_non_ignore', True)
# Of a member: what tells it from others, wherever its file lies.
OF_IDENTITY = ('seed', 'epoch', 'digest', 'network')
# What readers of a record rely on: types by key, a list of items of one type, or None besides a
# type. A key with a question mark may be missing, others may be there, and * stands for all keys.
CALIBRATION = {'methods': [str], 'forced': [str]}
MEMBER = {
    'checkpoint': str,
    'digest': str,
    'network': {'data_preprocessor?': (dict, None)},
    'seed': (int, None),
    'epoch': object,
    'loss': ({'type?': str}, None),
    'training': {'model': dict, 'train_cfg?': (dict, None)},
    'finished': (bool, None),
    'file': str,
    'calibration': (CALIBRATION, None),
}
MODEL = {
    'members': [MEMBER],
    'views': ([list], None),
    'mc_dropout': (int, None),
    'calibration': (CALIBRATION, None),
}
UNSEEN = {'prefix': str, 'scores': [str], 'ood_index': (int, None), 'counts': {'ID': int, '*': int}}
EVALUATION = {
    'dataset?': {'samples?': int},
    'data_options?': dict,
    'limit?': (int, None),
    'shift?': ({'kind': str, 'name': str, 'severity': int}, None),
    'ood?': [UNSEEN],
}
COLUMN = [(Real, None)]
STRATUM = {'ECE': COLUMN, 'accuracy': COLUMN, 'confidence': COLUMN, 'count': [Real]}
SHAPE = {
    'experiment': str,
    'split': str,
    'model': MODEL,
    'evaluation': EVALUATION,
    'metrics': dict,
    'strata?': {
        'per_class?': {'*': {'classes': list, **STRATUM}},
        'per_distance?': {'*': {'pixels': list, **STRATUM}},
    },
    'date?': str,
    'version?': str,
}


@dataclass
class Record:
    """A test. Model and evaluation identify it: equal ones would measure the same numbers.

    Attributes:
        experiment: Name of the config.
        split: ``'test'`` or ``'val'``.
        model: What predicts, see :func:`mmcalib.runs.model.describe`.
        evaluation: On what and how it was measured, see :func:`mmcalib.runs.evaluation.evaluation`.
        metrics: The figures, by key.
        strata: ``per_class`` and ``per_distance``, where they were measured, see
            :func:`mmcalib.runs.evaluation.strata`.
        date: When it was tested, in UTC, so that the order of dates is that of tests.
        version: Of mmcalib.
    """

    experiment: str
    split: str
    model: dict
    evaluation: dict
    metrics: dict
    strata: dict = field(default_factory=dict)
    date: str = ''
    version: str = ''

    @property
    def loss(self) -> dict | None:
        """Type and parameters of the loss of all members, None if they differ or do not tell."""
        return self._common('loss')

    @property
    def seed(self) -> int | None:
        """The seed of all members."""
        return self._common('seed')

    @property
    def calibration(self) -> dict | None:
        """The calibration of all members."""
        return self._common('calibration')

    def _common(self, key: str) -> object:
        found = [member[key] for member in self.model['members']]
        return found[0] if all(each == found[0] for each in found) else None

    @property
    def limit(self) -> int | None:
        """To how many samples a smoke run was limited, in the test, a training or calibration."""
        members = self.model['members']
        made = [member['training'] for member in members]
        made += [each['calibration'] or {} for each in (*members, self.model)]
        limits = [self.evaluation.get('limit'), *(each.get('limit') for each in made)]
        return next(filter(None, limits), None)

    def write(self, path: str | Path) -> None:
        """Write a ``results.json``, whole or not at all."""
        with whole_file(path) as temporary:
            text = json.dumps(asdict(self), indent=2, default=_of_numpy)
            temporary.write_text(text + '\n', encoding='utf-8')

    @classmethod
    def read(cls, path: str | Path) -> Record:
        """Read a ``results.json`` or ``results_val.json``.

        Raises:
            FileNotFoundError: If it is not there.
            ValueError: If it is no record, or one of another version.
        """
        try:
            content = json.loads(Path(path).read_text(encoding='utf-8'))
            check_shape(content, SHAPE)
            if not content['model']['members']:
                raise TypeError('model.members is empty')
            for name in ('per_class', 'per_distance'):
                tables = content.get('strata', {}).get(name, {})
                if any(len({*map(len, table.values())}) > 1 for table in tables.values()):
                    raise TypeError(f'strata.{name} has columns of several lengths')
            record = cls(**content)
            model_label(record.model, experiment=record.experiment)  # as of a sum of losses
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            raise UserError(f'{path} is no record of a test ({error}): test again') from error
        return record


def _of_numpy(value: object) -> object:
    return value.tolist() if hasattr(value, 'tolist') else str(value)


def read_json(path: str | Path, remedy: str = 'run its tool again') -> dict:
    """Return a file's content, with a remedy in the ValueError if it is cut off."""
    try:
        return json.loads(Path(path).read_text(encoding='utf-8'))
    except ValueError as error:
        raise UserError(f'{path} cannot be read ({error!r}): {remedy}') from error


def check_shape(node: object, shape: object, path: str = '') -> None:
    """Raise a TypeError that names the first place where JSON is not of a shape.

    Args:
        node: JSON's types.
        shape: As :data:`SHAPE`.
        path: Keys that lead to the node.
    """
    if isinstance(shape, tuple):
        shape, _ = shape
        if node is None:
            return
    kind = shape if isinstance(shape, type) else type(shape)
    if not isinstance(node, kind):
        place = path or 'the file'
        text = shorten(json.dumps(node), 60, placeholder='…')
        raise TypeError(f'{place} must be of type {kind.__name__}, got {text}')
    if isinstance(shape, list):
        for number, item in enumerate(node):
            check_shape(item, shape[0], f'{path}.{number}')
    elif isinstance(shape, dict):
        for key, part in shape.items():
            name = key.removesuffix('?')
            names = [name] if name in node else []
            if name == '*':
                names = list(node)
            elif name == key and not names:
                raise TypeError(f'{path}.{name} is missing'.lstrip('.'))
            for each in names:
                check_shape(node[each], part, f'{path}.{each}'.lstrip('.'))


def digest(node: object) -> str:
    """Return 16 hexadecimal digits that are equal for equal JSON."""
    text = json.dumps(node, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(there: object, here: object, path: str = '') -> Iterator[str]:
    """Yield the differences of two JSON values, such as ``members.0.seed 3 (here: 4)``."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in dict.fromkeys([*there, *here]):
            yield from differences(there.get(key), here.get(key), f'{path}.{key}'.lstrip('.'))
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for number, both in enumerate(zip(there, here, strict=True)):
            yield from differences(*both, f'{path}.{number}')
    elif there != here:
        both = [shorten(str(each), 99, placeholder='…') for each in (there, here)]
        yield f'{path} {both[0]} (here: {both[1]})'


def type_name(kind: object) -> str:
    """Return the name of a class or function, given itself or by its name in any scope."""
    return getattr(kind, '__name__', str(kind)).split('.')[-1]


def walk(node: object, path: str = '') -> Iterator[tuple[str, Mapping]]:
    """Yield path and dict of every part of a config or another tree, outer ones first."""
    items = enumerate(node) if isinstance(node, (list, tuple)) else ()
    if isinstance(node, Mapping):
        yield path, node
        items = node.items()
    for key, item in items:
        yield from walk(item, f'{path}.{key}'.lstrip('.'))


def identity(model: Mapping) -> dict:
    """Return what two models of one prediction share: wherever their files lie, in any order."""
    members = [{key: member[key] for key in OF_IDENTITY} for member in model['members']]
    return {**model, 'members': sorted(members, key=lambda member: member['digest'])}


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


def model_label(model: Mapping, *, experiment: str) -> str:
    """Return ``CE``, ``MbLS m=6 α=0.1 + temperature``, ``CE × 5 + TTA (2) + temperature`` etc.

    Args:
        model: Of a record.
        experiment: Name of the config, said of members that tell no loss.
    """
    losses = [member['loss'] for member in model['members'] if member['loss']]
    labels = dict.fromkeys(map(loss_label, losses))
    calibrations = [member['calibration'] for member in model['members']]
    common = all(each == calibrations[0] for each in calibrations)
    label = ' & '.join(labels) or experiment
    return label + (_calibrated(calibrations[0]) if common else '') + ensemble_label(model)


def ensemble_label(model: Mapping) -> str:
    """Return `` × 5 + TTA (2) + MC dropout (20) + temperature`` and the like, with a space first.

    In brackets are the views of an image, and the passes with random dropout.
    """
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
